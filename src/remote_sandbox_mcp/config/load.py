"""Loads the configuration: the environment overrides config.toml; one bad entry does not spoil the others."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.address import plain_name
from ..core.commands.command import Environment
from ..core.permission import AGENT_S, AGENTS, HOOK_NAME, Hook, Notify, read_address
from ..core.sandboxes.disposable import Limits, Platform
from ..core.sandboxes.machine import CommandPlace, LocalPlace
from ..core.sandboxes.network import NO_NETWORK
from ..core.serving import Announced
from ..local.files import fingerprint_of
from . import original, paths, readers, schema
from .machines import Builder
from .problems import Fault, Reporter, parse_toml, plain, position, quoted, read_document, unreported
from .readers import checked, read_table, report_unknown, table, take_variables
from .schema import Configuration, HostPatterns, MachineEntry, Settings, read_entry, secrets_of, written_secrets
from .secrets import readable_by_others, report_doubt
from .services import FOLDER, NAME, URL_FILE, ConfigFile, is_json, own_json, read_json, read_registries, read_services

LIST = "REMOTE_SANDBOX_LIST"
# How many faults, and how many characters of each, an error names at once.
MOST_FAULTS, MOST_SHOWN = 3, 250
SINGLE_KEYS = ("host", "port", "user", "password", "key_file", "key_passphrase")
# Settings that decide where code runs and which files it gets, if set by a variable.
_DECISIVE = {"opensandbox.server_url": ("platform", "server_url"), "server.allowed_roots": ("allowed_roots",)}


def load(config_path: Path | None = None, environ: Mapping[str, str] = os.environ, folder: str = "") -> Configuration:
    """Read everything that is configured. Never raises: what cannot be used is described in `problems`.

    `folder` is where the client works, by default the current one.
    """
    problems: list[str] = []
    # Problems because of which machines, or a whole file, are missing.
    faults: list[str] = []
    report = problems.append

    def blame(problem: str) -> None:
        report(problem)
        faults.append(problem)

    given_json = config_path if is_json(config_path) else None
    path = paths.config_file() if given_json or config_path is None else config_path
    file = str(path)
    found = read_document(path, "it is not valid TOML", parse_toml, blame, is_wanted=path is config_path)
    document = found or {}
    for key in (key for key in document if key not in schema.TOP_KEYS):
        report_unknown(key, schema.TOP_KEYS, file, report)
    own, project = own_json(given_json, path), os.path.join(folder, NAME)
    in_json = read_json(own, report, blame) if own else _of_project(project, environ, report)
    _report_workspace_file(folder, environ, report)
    if left := original.notice(environ, own):
        report(left)
    unread = tuple(faults)
    settings, sources = _settings(document, file, in_json, environ, report)
    extensions = _extensions(document, file, report)
    settings = replace(settings, extensions=extensions)
    if unread and not settings.platform.server_url:
        settings = replace(settings, rules=replace(settings.rules, refusal=" ".join(unread)))
    in_environ = _unique(_environ_entries(environ, blame), report)
    in_file = _unique(_file_entries(document, file, environ, blame), report)
    _report_exposed(path, in_file.values(), settings, report)
    entries = {**in_environ, **{name: entry for name, entry in in_file.items() if name not in in_environ}}
    builder = Builder(entries.values(), settings, environ, blame)
    rule = _host_rule(document, file, report)
    entries |= builder.add_fitting(rule)
    machines = builder.machines()
    names = [machine.name for machine in machines]
    commands: tuple[CommandPlace, ...] = ()
    if "sandboxes" in document:
        from .commands import read_commands

        secrets = secrets_of(entries.values(), settings)
        commands = tuple(read_commands(document, file, environ, secrets, settings.pass_env, names, blame))
    names += [place.name for place in commands]
    local = _local(document, file, names, report)
    default = _default(document, file, names + ([local.name] if local else []), report if names else blame)
    refusal = "" if names else _refusal(faults, local)
    return Configuration(
        machines=machines,
        commands=commands,
        local=local,
        default="" if refusal else default,
        refusal=refusal,
        settings=settings,
        problems=tuple(problems),
        faults=tuple(faults),
        sources=sources
        | {f"machines.{machine.name}": entries[machine.name].where for machine in machines}
        | {f"sandboxes.{place.name}": f"{file} [sandboxes.{plain(place.name)}]" for place in commands}
        | ({"extensions": file} if extensions else {}),
        # File that another process has to be given in order to read the same configuration.
        file=str(given_json) if given_json and in_json else "" if found is None else file,
        brought=in_json.file if in_json and in_json.is_brought else "",
        unread=unread,
        host_rule=rule,
        key_files=builder.key_files,
        find_host=functools.partial(builder.find, rule),
        read_from=(*_files(path, given_json, folder, environ), *dict(extensions), *builder.read_from),
    )


def _extensions(document: Mapping[str, Any], file: str, report: Reporter) -> tuple[tuple[str, object], ...]:
    """Files with tools of the operator's own. config.toml alone names them: they run with the rights of its user."""
    try:
        return tuple(fingerprint_of(readers.folders(document.get("extensions", []))).items())
    except Fault as fault:
        report(f"{file}: extensions {fault}, so none is loaded.")
        return ()


def _files(path: Path, given_json: Path | None, folder: str, environ: Mapping[str, str]) -> Iterator[str]:
    yield from (os.path.expanduser(file) for file in (path, given_json or path.with_name(NAME)))
    state = paths.state_path(environ)
    yield str(state / FOLDER / URL_FILE)
    yield str(state / original.JOURNAL)
    # A project's file that appears later counts from the next start on: other clients share this configuration.
    brought = [file for name in (NAME, paths.WORKSPACE_FILE) if os.path.lexists(file := os.path.join(folder, name))]
    if brought:
        yield from (*map(os.path.abspath, brought), str(state / paths.ACCEPTED))


def _refusal(faults: Sequence[str], local: LocalPlace | None) -> str:
    """Explain why a call that names no sandbox is refused, although one was configured; "" where it is not."""
    if not faults:
        return ""
    message = " ".join(plain(fault, MOST_SHOWN) for fault in faults[:MOST_FAULTS])
    more = f" (and {len(faults) - MOST_FAULTS} more: remote-sandbox-mcp doctor)" if len(faults) > MOST_FAULTS else ""
    otherwise = f", or name the sandbox {local.name!r} if it is to run there" if local else ""
    return f"nothing was done: no machine that is configured can be used. {message}{more} Correct that{otherwise}"


def _of_project(path: str, environ: Mapping[str, str], report: Reporter) -> ConfigFile | None:
    """Read the settings that the config.json of the current folder may make, if there is one."""
    if not os.path.isfile(path):
        return None
    from .project_file import read_project

    return read_project(path, environ, report)


def _report_workspace_file(folder: str, environ: Mapping[str, str], report: Reporter) -> None:
    """Say that the project's .remote-sandbox.toml is not what its user accepted; nothing of it is configuration."""
    if not os.path.lexists(os.path.join(folder, paths.WORKSPACE_FILE)):
        return
    from .workspace_file import notice

    if message := notice(folder, environ):
        report(message)


def _environ_entries(environ: Mapping[str, str], report: Reporter) -> Iterator[MachineEntry | None]:
    for number, raw in enumerate(listed(environ, report), 1):
        yield read_entry(raw, f"{LIST} entry {number}{_called(raw)}", environ, report)
    if given := single(environ):
        yield read_entry(given, "REMOTE_HOST", environ, report, _variable)


def single(environ: Mapping[str, str]) -> dict[str, str]:
    """The machine of REMOTE_HOST and its companions in the form of the list; empty for none."""
    given = {key: value for key in SINGLE_KEYS if (value := environ.get(_variable(key)))}
    return given if given.get("host", "").strip() else {}


def _variable(key: str) -> str:
    return f"REMOTE_{key.upper()}"


def listed(environ: Mapping[str, str], report: Reporter) -> list[Any]:
    """The entries of REMOTE_SANDBOX_LIST, unparsed; none, with a problem reported, where it cannot be read."""
    text = environ.get(LIST, "")
    if not text.strip():
        return []
    import json

    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        report(f"{LIST} is passed over: it is not valid JSON{position(error)}; correct it there.")
        return []
    if not isinstance(found, list):
        report(f"{LIST} is passed over: it must be a JSON list of machines, so put [ and ] around it.")
        return []
    return found


def _called(raw: object) -> str:
    name = raw.get("name") if isinstance(raw, Mapping) else None
    return f" ({quoted(name)})" if name and isinstance(name, str) else ""


def _file_entries(
    document: Mapping[str, Any], file: str, environ: Mapping[str, str], report: Reporter
) -> Iterator[MachineEntry | None]:
    for name, raw in table(document, "machines", file, report).items():
        named = {"name": name, **raw} if isinstance(raw, Mapping) else raw
        yield read_entry(named, f"{file} [machines.{plain(name)}]", environ, report)
    try:
        hosts = readers.texts(document.get("hosts", []))
    except Fault as fault:
        report(f"{file}: hosts is passed over: each of them {fault}.")
        return
    for alias in hosts:
        if not readers.is_pattern(alias):
            yield read_entry({"ssh_alias": alias}, f"{file} hosts {quoted(alias)}", environ, report)


def _host_rule(document: Mapping[str, Any], file: str, report: Reporter) -> HostPatterns:
    """Read which hosts of ~/.ssh/config are offered by patterns, and whether by name after the start, too."""
    try:
        readers.texts(document.get("hosts", []))
    except Fault:
        # Told where each is read.
        return HostPatterns()
    # The other keys of the file are not unknown.
    rule, faults = read_table(document, schema.HOST_READERS, file, unreported)
    for fault in faults:
        report(f"{file}: {fault}, so it is passed over.")
    patterns, at_run_time = rule.get("hosts", ()), rule.get("hosts_at_run_time", False)
    if at_run_time and not patterns:
        report(f'{file}: hosts_at_run_time has no effect without hosts that may be found; add hosts = ["*"], for all.')
    return HostPatterns(patterns, at_run_time, f"{file} hosts")


def _unique(entries: Iterable[MachineEntry | None], report: Reporter) -> dict[str, MachineEntry]:
    chosen: dict[str, MachineEntry] = {}
    for entry in filter(None, entries):
        other = chosen.setdefault(entry.name, entry)
        if other is not entry:
            report(
                f"{entry.where} is left out: its name {quoted(entry.name)} is that of {other.where} already; "
                "give it a name of its own."
            )
    return chosen


def _report_exposed(path: Path, entries: Iterable[MachineEntry], settings: Settings, report: Reporter) -> None:
    """Warn about passwords in a file that others can read."""
    is_written = any(secret and not secret.source for secret in written_secrets(entries, settings))
    if is_written and readable_by_others(str(path)):
        report(f"{path} holds a password, and other users may read it: run chmod 600 {path}.")


def _settings(
    document: Mapping[str, Any], file: str, in_json: ConfigFile | None, environ: Mapping[str, str], report: Reporter
) -> tuple[Settings, dict[str, str]]:
    values = checked(document, "server", schema.SERVER_READERS, file, report)
    said, variables = take_variables(schema.SERVER_VARIABLES, schema.SERVER_READERS, environ, report)
    sources = {f"server.{key}": where for key, where in (dict.fromkeys(values, file) | variables).items()}
    # What is wrong there is reported where the sandbox itself is read.
    local = checked(document, "local", schema.LOCAL_READERS, file, unreported)
    results = checked(document, "results", schema.RESULT_READERS, file, report)
    notify, origins = _notify(document, file, environ, report)
    watch = checked(document, "watch", schema.WATCH_READERS, file, report)
    origins |= dict.fromkeys((f"watch.{key}" for key in watch), file)
    origins |= dict.fromkeys((f"results.{key}" for key in results), file)
    services = read_services([*([in_json] if in_json else []), ConfigFile(file, document)], environ, report)
    for exposed in dict.fromkeys(services.exposed):
        if readable_by_others(exposed):
            report(f"{exposed} holds a key, and other users may read it: run chmod 600 {exposed}.")
    registries = read_registries(document, file, environ, report)
    origins |= {f"registries.{host}": file for host in registries}
    platform = replace(services.platform, registries=registries)
    if in_json and in_json.is_brought and services.sources.get("opensandbox.server_url") == in_json.file:
        platform = _without_secrets(platform, in_json.file, report)
    announced = checked(in_json.document, "server", schema.JSON_SERVER_READERS, in_json.file, report) if in_json else {}
    settings = Settings(
        **(values | said),
        result_text=results.get("text", ""),
        notify=notify,
        alerts=replace(Settings.alerts, **{f"{key}_s": value for key, value in watch.items()}),
        platform=platform,
        rules=replace(services.rules, walls=local.get("walls", "")),
        http=services.http,
        logging=services.logging,
        announced=Announced(**announced),
    )
    return settings, {**sources, **origins, **services.sources}


def _without_secrets(platform: Platform, file: str, report: Reporter) -> Platform:
    """The platform that a project names: nobody has given the user's keys to that server."""
    if platform.api_key or platform.registries:
        report(
            f"{plain(file, 200)} names the server, so your API key and the logins of registries are not sent to it; "
            "if they are for that server, set OPENSANDBOX_SERVER to its address."
        )
    return replace(platform, api_key=None, registries={})


def _notify(
    document: Mapping[str, Any], file: str, environ: Mapping[str, str], report: Reporter
) -> tuple[Notify, dict[str, str]]:
    where = f"{file} [notify]"
    allowed = {**schema.NOTIFY_READERS, "webhook_secret": readers.secret(environ)}
    values = checked(document, "notify", allowed, file, report)
    values["webhooks"] = tuple(_addresses(values.get("webhooks", ()), where, report))
    if "webhook_secret" in values:
        report_doubt(where, "webhook_secret", document["notify"]["webhook_secret"], environ, report)
    hooks = {
        name: hook
        for name, raw in table(document, "hooks", file, report).items()
        if (hook := _hook(name, raw, f"{file} [hooks.{plain(name)}]", report))
    }
    origins = [f"notify.{key}" for key in values if values[key] != ()] + [f"hooks.{name}" for name in hooks]
    return Notify(**values, hooks=hooks), dict.fromkeys(origins, file)


def _addresses(urls: Iterable[str], where: str, report: Reporter) -> Iterator[str]:
    """Allowed prefixes for webhooks; bad ones are reported by number, because addresses may hold keys."""
    for number, url in enumerate(urls, 1):
        try:
            read_address(url)
            yield url
        except ValueError as problem:
            report(f"{where}: number {number} of webhooks is passed over: it {problem}.")


def _hook(name: str, raw: object, where: str, report: Reporter) -> Hook | None:
    """A hook from its table. One with a mistake is dropped: it would run something other than what was meant."""
    if not isinstance(raw, Mapping):
        report(f"{where} is left out: it must be a table of keys and values, with command at least.")
        return None
    values, faults = read_table(raw, schema.HOOK_READERS, where, report)
    if not HOOK_NAME.fullmatch(name):
        faults.append("its name must be letters, digits, - and _, at most 40 of them")
    elif not faults and not {"command", "kind"} & set(values):
        faults.append("command is missing")
    if faults:
        report(f"{where} is left out: {', and '.join(faults)}.")
        return None
    if kind := values.get("kind"):
        values = {"command": AGENTS[kind], "timeout_s": AGENT_S, **values}
    hook = Hook(**values)
    if os.path.isabs(hook.command[0]) and not os.access(hook.command[0], os.X_OK):
        report(f"{where}: the program {quoted(hook.command[0])} is not there or may not be run; correct its path.")
    return hook


def _local(document: Mapping[str, Any], file: str, taken: Iterable[str], report: Reporter) -> LocalPlace | None:
    values = checked(document, "local", schema.LOCAL_READERS, file, report)
    if not values.pop("enabled", True):
        return None
    environment = Environment(values.get("shell", ()), values.get("init", ()), values.get("env", {}))
    network = replace(values.get("network", NO_NETWORK), private_ranges=values.get("private_ranges", ()))
    held = Limits(**{name: values[name] for name in ("cpu", "memory_mb", "processes", "disk_mb") if name in values})
    more = {name: values[name] for name in ("shm_mb", "walls") if name in values}
    local = LocalPlace(values.get("name") or "local", network, environment, limits=held, **more)
    if local.name in taken:
        report(
            f"The embedded sandbox is left out: a machine is named {quoted(local.name)} as well; "
            f"set name or enabled = false under [local] in {file}."
        )
        return None
    return local


def _default(document: Mapping[str, Any], file: str, names: list[str], report: Reporter) -> str:
    """The sandbox named as the default, else the first one."""
    fallback = names[0] if names else ""
    wanted = document.get("default", fallback)
    wanted = plain_name(wanted) if isinstance(wanted, str) and wanted not in names else wanted
    if wanted in names:
        return str(wanted)
    if wanted:
        shown = quoted(wanted) if isinstance(wanted, str) else "what it says"
        report(f"{file}: default is passed over: no sandbox that can be used is named {shown}.")
    return fallback


def identity_of(configuration: Configuration) -> str:
    """Identity of a configuration: equal for servers with the same file and the same decisive variables. No secrets.

    The file's content does not count: after a machine is added to it, the same disposable sandboxes are visible.
    """
    import hashlib
    import json

    file = os.path.realpath(configuration.file or paths.config_file())
    said = [*_machines(configuration), *_decisive_settings(configuration)]
    return hashlib.sha256(json.dumps([file, sorted(said)]).encode("utf-8", "backslashreplace")).hexdigest()[:32]


def _machines(configuration: Configuration) -> list[list[str]]:
    """The machines that the environment names."""
    named = [it for it in configuration.machines if _is_variable(configuration.sources.get(f"machines.{it.name}", ""))]
    return [["machine", it.name, it.host, str(it.port), it.login.user] for it in named]


def _decisive_settings(configuration: Configuration) -> list[list[str]]:
    said = []
    for key, attributes in _DECISIVE.items():
        source = configuration.sources.get(key, "")
        if _is_variable(source) or source == configuration.brought != "":
            value: object = configuration.settings
            for attribute in attributes:
                value = getattr(value, attribute)
            said.append([key, str(value)])
    return said


def _is_variable(source: str) -> bool:
    return source.startswith(("REMOTE_", "OPENSANDBOX_", "OPEN_SANDBOX_"))
