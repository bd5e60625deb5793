"""Policy engines: where weights are, how they change format, how a server of them starts and stops.

`models` finds files, `weights` converts them, `server` runs an engine as a child process, `policy_command` has the
commands. The client never sees any of it: it gets an `Endpoint`, a base URL like that of any other OpenAI-compatible
service.
"""
