"""Names of files and folders that look like those of secrets; also sent to the far side as text, so it is Python 3.6.

The one list for every way out of this computer. Its names, starts and endings are in lower case, and so is what is
compared with them.
"""

import re
from collections.abc import Callable

# Logins, tokens and histories of programs, wherever they lie.
SECRET_NAMES = {
    *(b".netrc", b"_netrc", b".pgpass", b".npmrc", b".pypirc", b".htpasswd", b".git-credentials", b".vault-token"),
    *(b".envrc", b"kubeconfig", b".dockercfg", b".s3cfg", b".passwd-s3fs", b".boto", b".databrickscfg", b"kaggle.json"),
    *(b".my.cnf", b".mylogin.cnf", b".authinfo", b".authinfo.gpg", b".msmtprc", b".fetchmailrc", b".xauthority"),
    *(b".iceauthority", b".mcp.json", b".claude.json", b"claude_desktop_config.json", b"oauth_creds.json"),
    *(b"rclone.conf", b"wg0.conf", b".terraformrc", b".sentryclirc", b".vault_pass", b".vault_pass.txt", b".dev.vars"),
    *(b".vault_password", b".secrets", b"local.settings.json", b"settings-security.xml", b"token.json"),
    *(b"access_tokens.db", b"login data", b"logins.json", b"key3.db", b"key4.db", b"cookies.sqlite", b"cookies.txt"),
    *(b"token.pickle", b"wallet.dat", b"fish_history"),
}
# Ordinary names that hold a secret in a folder of one of these names.
SECRET_INSIDE = {
    b"config.json": (b".docker",),
    b"config": (b".kube",),
    b"config.toml": (b".codex",),
    b"config.yml": (b"glab-cli",),
    b"config.yaml": (b"doctl",),
    b"auth.json": (b".codex", b".docker", b"containers", b".composer", b"composer"),
    b"mcp.json": (b".cursor", b".vscode", b".amazonq"),
    b"settings.json": (b".gemini",),
    b"hosts.yml": (b"gh",),
    b"hosts.json": (b"github-copilot",),
    b"apps.json": (b"github-copilot",),
    b"settings.xml": (b".m2",),
    b"gradle.properties": (b".gradle",),
    b"token": (b"huggingface", b".huggingface"),
    b"stored_tokens": (b"huggingface", b".huggingface"),
    b"keys.txt": (b"age",),
    b"gcloud": (b".config",),
}
# Folders that are left out with all in them.
SECRET_FOLDERS = {
    *(b".ssh", b".gnupg", b".aws", b".azure", b".kube", b".oci", b".password-store", b".mozilla", b".thunderbird"),
    *(b"legacy_credentials", b"private-keys-v1.d"),
}
SECRET_ENDINGS = (
    *(b".pem", b".key", b".p8", b".p12", b".pfx", b".jks", b".keystore", b".kdbx", b".kdb", b".ppk", b".env"),
    *(b".tfstate", b".tfvars", b".tfvars.json", b".kubeconfig", b"credentials", b".ovpn", b".keytab", b".agekey"),
    b"_history",
)
# A name that begins like this is looked at closely.
SECRET_STARTS = (b".env", b"id_", b"credentials", b"secrets.", b"secring.", b"krb5cc")
SECRET_KEY_FILE = re.compile(rb"id_(?:rsa|dsa|ecdsa|ed25519)|id_[^.]*\Z")
SECRET_JSON = re.compile(rb"credentials|client_secret|service[-_ ]?account|firebase-adminsdk")
# Examples hold the names of the settings, and no values; public keys are made to be given away.
SECRET_EXAMPLE = re.compile(
    rb"[._-](?:example|sample|template|dist)\Z|(?:example|sample|template)\.env\Z|\.pub\Z"
    rb"|\A(?:cacerts?|ca-bundle|ca-certificates|roots)\.pem\Z"
)
SECRET_ENVIRONMENT = re.compile(rb"\.env(?:[._-]|\Z)")
# Source code about credentials is no secret, and a project does not run without it.
SECRET_CODE = (
    *(b".py", b".pyi", b".pyc", b".pyx", b".ipynb", b".js", b".jsx", b".mjs", b".cjs", b".ts", b".tsx", b".vue"),
    *(b".go", b".rs", b".java", b".kt", b".scala", b".groovy", b".clj", b".c", b".cc", b".cpp", b".cxx", b".h"),
    *(b".hh", b".hpp", b".cu", b".cuh", b".m", b".mm", b".swift", b".cs", b".fs", b".rb", b".php", b".pl", b".lua"),
    *(b".r", b".jl", b".dart", b".ex", b".exs", b".erl", b".hs", b".ml", b".proto", b".html", b".css", b".scss"),
    *(b".pm", b".svelte"),
)
# These names of files are usual names of folders.
SECRET_FILE_ONLY = re.compile(rb"id_(?!rsa|dsa|ecdsa|ed25519)|.+(?:credentials|\.env|_history)\Z")
# How editors and people name copies of a file.
SECRET_MARKS = (b"~", b"#")
SECRET_COPY_ENDINGS = (
    *SECRET_MARKS,
    *(b".swp", b".swo", b".swn", b".bak", b".old", b".orig", b".save", b".backup", b".tmp"),
)
# Nearly all names are ordinary, which their first and last three letters tell at once.
SECRET_FIRST = {name[:3] for name in (*SECRET_NAMES, *SECRET_INSIDE, *SECRET_STARTS)}
SECRET_LAST = {ending[-3:] for ending in (*SECRET_ENDINGS, *SECRET_COPY_ENDINGS, b".json")}


def may_be_secret(name: bytes) -> bool:
    """Whether the name of a file has to be looked at closely."""
    low = name.lower()
    return (
        low[:3] in SECRET_FIRST
        or low[-3:] in SECRET_LAST
        or low[-1:] in SECRET_MARKS
        or low[:2] == b".#"
        or b".tfstate." in low
    )


def is_secret_name(name: bytes, path: bytes = b"") -> bool:
    """Whether a file of this name often holds a secret, or is an editor's copy of one that does.

    With its path, the folder that it lies in counts, too.
    """
    if not may_be_secret(name):
        return False
    # As earlier versions have left it out; in other cases it is a usual name of source code.
    if name.startswith(b"secrets.") and SECRET_EXAMPLE.search(name) is None:
        return True
    return is_copy_of(name.lower(), lambda low: is_listed_secret(low) or is_secret_inside(low, path))


def is_secret_folder(name: bytes, path: bytes = b"") -> bool:
    """Whether a folder of this name is left out with all in it."""
    return is_copy_of(name.lower(), lambda low: is_listed_folder(low) or is_secret_inside(low, path))


def is_copy_of(low: bytes, is_secret: "Callable[[bytes], bool]") -> bool:
    """Whether a name in lower case, or one that it is an editor's copy of, is secret."""
    while not is_secret(low):
        if low.startswith(b".#"):
            low = low[2:]
        elif low.endswith(SECRET_COPY_ENDINGS) and len(low) > 1:
            low = secret_original(low)
        else:
            return False
    return True


def is_secret_inside(low: bytes, path: bytes) -> bool:
    return low in SECRET_INSIDE and path.lower().rpartition(b"/")[0].rpartition(b"/")[2] in SECRET_INSIDE[low]


def is_listed_folder(low: bytes) -> bool:
    is_file = is_listed_secret(low) and SECRET_FILE_ONLY.match(low) is None
    return low in SECRET_FOLDERS or low.startswith(b"secrets.") or is_file


def is_listed_secret(low: bytes) -> bool:
    """Check a name in lower case against the lists, without regard to copies."""
    if SECRET_EXAMPLE.search(low) is not None:
        return False
    if low in SECRET_NAMES or b".tfstate." in low:
        return True
    if low.endswith(SECRET_ENDINGS):
        return low.startswith(b".") or not low.endswith(b"_history")
    if low.endswith(b".json") and SECRET_JSON.search(low) is not None:
        return True
    return low.startswith(SECRET_STARTS) and begins_like_secret(low)


def begins_like_secret(low: bytes) -> bool:
    if low.startswith(b".env"):
        return SECRET_ENVIRONMENT.match(low) is not None
    if low.startswith(b"id_"):
        return SECRET_KEY_FILE.match(low) is not None
    if low.startswith((b"secring.", b"krb5cc")):
        return True
    ending = low[len(b"credentials") :] if low.startswith(b"credentials") else b"."
    return ending[:1] in (b".", b"-", b"_") and not low.endswith(SECRET_CODE)


def secret_original(low: bytes) -> bytes:
    """The name of the file that this one is a copy of, without the dot that Vim puts before the name of its own."""
    if low.startswith(b"#") and low.endswith(b"#") and len(low) > 2:
        return low[1:-1]
    stem = low[:-1] if low.endswith(SECRET_MARKS) else low[: low.rindex(b".")]
    is_of_vim = low.endswith((b".swp", b".swo", b".swn")) and not stem.startswith(b".env")
    return stem[1:] if is_of_vim and stem.startswith(b".") else stem


def secret_lines_in(folder: str) -> "tuple[str, ...]":
    """.gitignore lines for the ordinary names that hold a secret because a tree's own folder has such a name."""
    name = folder.rstrip("/").rpartition("/")[2].lower().encode("utf-8", "surrogateescape")
    return tuple("/" + inner.decode() for inner, folders in SECRET_INSIDE.items() if name in folders)
