"""Which names of files look like those of secrets; also sent to the far side as text, so it stays Python 3.6."""

import re

# All of these are compared in lower case.
SECRET_NAMES = {
    *(b".netrc", b"_netrc", b".pgpass", b".npmrc", b".pypirc", b".htpasswd", b".git-credentials", b".vault-token"),
    *(b".envrc", b"kubeconfig", b".dockercfg", b".s3cfg"),
}
SECRET_ENDINGS = (
    *(b".pem", b".key", b".p8", b".p12", b".pfx", b".jks", b".keystore", b".kdbx", b".ppk", b".env"),
    *(b".tfstate", b".tfvars", b".tfvars.json", b".kubeconfig", b"credentials"),
)
# What begins like this is looked at closely.
SECRET_STARTS = (b".env", b"id_", b"credentials", b"secrets.", b"service-account")
SECRET_KEY_FILE = re.compile(rb"id_(?:rsa|dsa|ecdsa|ed25519)|id_[^.]*\Z")
# Examples hold the names of the settings, and no values.
SECRET_EXAMPLE = re.compile(rb"\.env[._-](?:example|sample|template)\Z|(?:example|sample|template)\.env\Z")
SECRET_ENVIRONMENT = re.compile(rb"\.env(?:[._-]|\Z)")
# Source code about credentials is no secret, and a project does not run without it.
SECRET_CODE = (
    *(b".py", b".pyi", b".pyx", b".ipynb", b".js", b".jsx", b".mjs", b".cjs", b".ts", b".tsx", b".vue", b".svelte"),
    *(b".go", b".rs", b".java", b".kt", b".scala", b".groovy", b".clj", b".c", b".cc", b".cpp", b".cxx", b".h"),
    *(b".hh", b".hpp", b".cu", b".cuh", b".m", b".mm", b".swift", b".cs", b".fs", b".rb", b".php", b".pl", b".lua"),
    *(b".r", b".jl", b".dart", b".ex", b".exs", b".erl", b".hs", b".ml", b".proto", b".html", b".css", b".scss"),
)
# How editors and people name copies of a file.
SECRET_COPY_ENDINGS = (b"~", b"#", b".swp", b".swo", b".swn", b".bak", b".old", b".orig", b".save", b".backup", b".tmp")


def is_secret_name(name: bytes) -> bool:
    """Whether a file of this name often holds a secret, or is an editor's copy of one that does.

    >>> [is_secret_name(name) for name in (b".env", b"#.env#", b"KEY.PEM", b".env.example", b"credentials.py")]
    [True, True, True, False, False]
    """
    # As earlier versions have left it out; in other cases it is a usual name of source code.
    if name.startswith(b"secrets."):
        return True
    name = name.lower()
    while not is_listed_secret(name):
        if name.startswith(b".#"):
            name = name[2:]
        elif name.endswith(SECRET_COPY_ENDINGS) and len(name) > 1:
            name = secret_original(name)
        else:
            return False
    return True


def is_listed_secret(name: bytes) -> bool:
    """The same of a name in lower case, without regard to copies."""
    if name in SECRET_NAMES or b".tfstate." in name:
        return True
    if name.endswith(SECRET_ENDINGS):
        return SECRET_EXAMPLE.search(name) is None
    if name.endswith(b".json") and b"credentials" in name:
        return True
    return name.startswith(SECRET_STARTS) and begins_like_secret(name)


def begins_like_secret(name: bytes) -> bool:
    if name.startswith(b".env"):
        return SECRET_ENVIRONMENT.match(name) is not None and SECRET_EXAMPLE.match(name) is None
    if name.startswith(b"id_"):
        return SECRET_KEY_FILE.match(name) is not None
    if name.startswith(b"service-account"):
        return name.endswith(b".json")
    ending = name[len(b"credentials") :] if name.startswith(b"credentials") else b"."
    return ending[:1] in (b".", b"-", b"_") and not name.endswith(SECRET_CODE)


def secret_original(name: bytes) -> bytes:
    """The name of the file that this one is a copy of, without the dot that Vim puts before the name of its own."""
    if name.startswith(b"#") and name.endswith(b"#") and len(name) > 2:
        return name[1:-1]
    stem = name[:-1] if name.endswith((b"~", b"#")) else name[: name.rindex(b".")]
    is_of_vim = name.endswith((b".swp", b".swo", b".swn")) and not stem.startswith(b".env")
    return stem[1:] if is_of_vim and stem.startswith(b".") else stem
