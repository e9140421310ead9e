"""`prolepsis propose-server`: a proposer of ours for engines in other processes or on other machines."""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.terminal.config import Settings
from prolepsis.core.terminal.flags import configured
from prolepsis.core.terminal.output import NOT_SERVED, print_error
from prolepsis.engine.commands.downloads import ensure_model
from prolepsis.server.cli.serve import LogLevel

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine

    from prolepsis.remote.propose.server import ProposeServer


@configured(EngineConfig)
def propose_server(
    settings: Settings,
    *,
    listen: Annotated[str, typer.Option(help="HOST:PORT to listen on; port 0: any free port")] = "127.0.0.1:8600",
    proposer: Annotated[Literal["suffix", "prompt_lookup", "draft_model"], typer.Option(help="what drafts")] = "suffix",
    max_draft_tokens: Annotated[int, typer.Option(min=1, max=128, help="most tokens of a draft")] = 32,
    max_engines: Annotated[int, typer.Option(min=1, help="most engines connected at once")] = 64,
    tls_certificate: Annotated[Path | None, typer.Option(help="certificate chain (PEM); turns on TLS")] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="private key of the certificate; default: in the same file")
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="least severity of log lines")] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="write log lines as JSON")] = False,
) -> None:
    """Draft for engines that have the same key and serve --model, until interrupted. A queue replaces --listen."""
    from prolepsis.core.network import host_and_port, server_tls
    from prolepsis.core.telemetry.logs import configure_logs

    configure_logs(log_level, as_json=log_json)
    place = host_and_port(listen)
    if place is None:
        raise ConfigError(f"listen is {listen!r}; allowed: HOST:PORT", param="listen")
    tls = server_tls(tls_certificate, tls_key)
    from prolepsis.engine.start import loading

    with loading():
        from prolepsis.engine.drafting.remote.link import shared_key
        from prolepsis.engine.drafting.remote.messages import ProposeLimits
        from prolepsis.engine.drafting.remote.queue import Queue
        from prolepsis.remote.propose.served import served_model
        from prolepsis.remote.propose.server import ProposeServer, ServingLimits

        key = shared_key(settings.engine)
        ensure_model(settings)
        model = served_model(settings.engine, proposer)
    server = ProposeServer(model, key, ServingLimits(max_engines, ProposeLimits(most_draft_tokens=max_draft_tokens)))
    if (queue := Queue.of(settings.engine, model.vocabulary)) is not None:
        from prolepsis.remote.propose.queue import QueueServer

        return asyncio.run(_until_ended(QueueServer(server, queue).run()))
    try:
        asyncio.run(_serve(server, *place, tls))
    except OSError as error:
        print_error(f"cannot listen on {listen}: {error}")
        raise typer.Exit(NOT_SERVED) from error


async def _serve(server: "ProposeServer", host: str, port: int, tls: "ssl.SSLContext | None") -> None:
    import structlog

    listening = await server.listen(host, port, tls)
    bound = listening.sockets[0].getsockname()
    structlog.get_logger(__name__).info("listening", host=bound[0], port=bound[1], proposer=server.proposer.name)
    async with listening:
        await _until_ended(server.run())


async def _until_ended(run: "Coroutine[None, None, None]") -> None:
    drafting = asyncio.ensure_future(run)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, drafting.cancel)
    with suppress(asyncio.CancelledError):
        await drafting
