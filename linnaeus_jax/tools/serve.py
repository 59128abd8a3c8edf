"""Serves a trained model over HTTP, with a page for people.

    linnaeus serve BUNDLE
    curl -F images=@bird.jpg -F latitude=48.2 -F longitude=16.4 -F date=2024-05-17 http://127.0.0.1:8000/predict

`/` is the page, `/predict` takes pictures, `/info` describes the model, `/openapi.json` the interface; `/health` and
`/metrics` (Prometheus) are for those who run it. Every batch size is compiled before the first request. Ctrl-C or
SIGTERM end it after the requests that have come are answered. It answers to the names of this machine for itself, to
the address of --host and to --host-names. With a token (--token-file, or the environment variable LINNAEUS_SERVE_TOKEN)
everything but /health wants it: curl -H "Authorization: Bearer TOKEN"; browsers ask for it as a password. It has no
encryption: on an open network put a proxy in front that has. Needs the extra `serve`: pip install
"linnaeus-jax[serve]".
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import ipaddress
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from linnaeus_jax import system, tools
from linnaeus_jax.config.errors import UserError

#: files that the server opens besides its connections, at most
OTHER_FILES = 200


def _parser() -> argparse.ArgumentParser:
    parser = tools.parser("serve", __doc__)
    parser.add_argument("bundle", help="a bundle, or a run directory")
    parser.add_argument("--checkpoint", default="best", help="of a run: best (default), newest or a step")
    tools.plugins_option(parser)
    tools.runtime_option(parser)
    tools.prior_options(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine alone)")
    parser.add_argument("--port", type=int, default=8000, help="0: any free one (default: 8000)")
    parser.add_argument(
        "--host-names", default="", metavar="NAME,...", help="further names of this server, e.g. species.example.org"
    )
    parser.add_argument(
        "--origins", default="", metavar="URL,...", help="sites whose pages may use it, e.g. https://example.org"
    )
    parser.add_argument("--token-file", type=Path, help="file that holds the token which requests must bring")
    parser.add_argument(
        "--buckets", default="", help="batch sizes, separated by commas (default: 1,4,8,16,32,64; on CPUs up to 8)"
    )
    parser.add_argument(
        "--wait-ms",
        type=float,
        default=20.0,
        help="that a picture waits for others that are known to come (default: %(default)g)",
    )
    parser.add_argument(
        "--decoders", type=int, default=0, help="processes that decode pictures (default: one per core)"
    )
    parser.add_argument("--max-body-mib", type=float, default=20.0, help="of a request (default: 20)")
    parser.add_argument("--max-pictures", type=int, default=32, help="of a request (default: 32)")
    parser.add_argument("--max-megapixels", type=float, default=64.0, help="of a picture (default: 64)")
    parser.add_argument("--max-seconds", type=float, default=30.0, help="for a request (default: 30)")
    parser.add_argument("--max-queue", type=int, default=128, help="requests at once, others get 503 (default: 128)")
    parser.add_argument("--max-connections", type=int, default=512, help="open at once (default: 512)")
    return parser


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; nobody can connect before the server listens on it.

    Raises:
      UserError: the address cannot be used.
    """
    if not 0 <= port < 2**16:
        raise UserError(f"cannot listen on port {port}; give one from 0 to {2**16 - 1}")
    with contextlib.ExitStack() as on_failure:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            bound = on_failure.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except (OSError, OverflowError) as error:
            raise UserError(f"cannot listen on {host}:{port}: {error}; choose another --host or --port") from error
        on_failure.pop_all()
        return bound


def allow_open_files(connections: int) -> None:
    """Raises the limit of open files as far as needed and allowed; UserError where that is not far enough."""
    needed = connections + OTHER_FILES
    soft, hard = system.open_file_limits()
    if needed > hard:
        raise UserError(
            f"--max-connections is {connections}, but this process may open {hard} files; give at most "
            f"{max(hard - OTHER_FILES, 1)}, or raise the limit of open files (ulimit -Hn)"
        )
    if needed > soft:
        system.allow_open_files(needed)


def buckets_of(text: str) -> tuple[int, ...]:
    """Raises UserError where they are no sizes."""
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise UserError(f"--buckets is {text!r}; give batch sizes such as 1,4,16,64")
    return sizes


def keep_what_is_loaded() -> None:
    """Takes what was imported and compiled out of the search for garbage. Else that takes half a second among the first
    requests, and again now and then, in which nobody gets an answer."""
    gc.collect()
    gc.freeze()


@tools.command()
def main(argv: Sequence[str]) -> None:
    """Command line; returns the exit status."""
    options = _parser().parse_args(argv)
    for name in ("max_body_mib", "max_pictures", "max_megapixels", "max_seconds", "max_queue", "max_connections"):
        if getattr(options, name) <= 0:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(options, name):g}; give more than 0")
    from linnaeus_jax.step.process import set_up_inference

    set_up_inference()
    try:
        from linnaeus_jax.inference.server.serving import SERVER_BUCKETS, create_app, serve
    except ModuleNotFoundError as error:
        raise UserError(f'{error.name} is not installed; run: pip install "linnaeus-jax[serve]"') from error
    from linnaeus_jax.inference.forward import usual_buckets
    from linnaeus_jax.inference.model import Model, read_bundle_or_run
    from linnaeus_jax.inference.server.access import access_of, read_token
    from linnaeus_jax.inference.server.requests import Limits
    from linnaeus_jax.reporting.logs import console

    buckets = buckets_of(options.buckets) if options.buckets else None
    token = read_token(options.token_file)
    allow_open_files(options.max_connections)
    with listen(options.host, options.port) as listener:
        host, port = listener.getsockname()[:2]
        access = access_of(host, options.host_names, options.origins, token)
        bundle = read_bundle_or_run(options.bundle, options.checkpoint, options.plugins)
        model = Model(bundle, buckets or usual_buckets(bundle.preprocessing.size, SERVER_BUCKETS), options.runtime)
        model = tools.with_prior(options, model, lambda text: console.print(text, soft_wrap=True))
        limits = Limits(
            round(options.max_body_mib * 2**20),
            options.max_pictures,
            round(options.max_megapixels * 1e6),
            options.max_seconds,
            options.max_queue,
            connections=options.max_connections,
        )
        app = create_app(model, limits, access=access, wait=options.wait_ms / 1000, decoders=options.decoders)
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        sizes = ", ".join(map(str, model.forward.buckets))
        if not token and not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
            console.print(f"no token is set: whoever reaches {place} can use it (--token-file)", soft_wrap=True)
        if not system.can_limit_memory():
            console.print(
                "this system sets no limit to the memory of a decoder: an image made for it may fill this machine's",
                soft_wrap=True,
            )
        console.print(f"{options.bundle}: compiling batches of {sizes} pictures", soft_wrap=True)

        def ready() -> None:
            keep_what_is_loaded()
            console.print(f"serving on http://{place}/ (end with Ctrl-C)")

        serve(app, listener, ready)
    console.print("stopped")


if __name__ == "__main__":
    sys.exit(main())
