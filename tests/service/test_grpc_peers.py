"""gRPC's own client asks our server and gRPC's own, with the same methods behind both: it cannot tell them apart."""

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from penstock.service.grpc import ANSWER, Grpc, Message
from penstock.service.wire.calls import StreamingCall
from penstock.service.wire.limits import ServerLimits
from penstock.service.wire.tls import ServerTls
from tests.rig.certificates import Certificate
from tests.rig.processes import DEADLINE, wait_until
from tests.service.harness import serving

LARGEST = 200_000


class Method:
    """A method of a test, made of a function."""

    def __init__(self, name: str, handle: Callable[[Message], None]) -> None:
        self.path = f"/test.Test/{name}".encode()
        self._handle = handle

    def handle(self, messages: list[Message]) -> None:
        for message in messages:
            self._handle(message)


def sized(message: Message) -> None:
    message.answer(b"x" * int(message.data))


def failing(message: Message) -> None:
    code, _, text = message.data.partition(b" ")
    message.fail(int(code), text.decode())


def faulty(message: Message) -> None:
    raise RuntimeError("no")


def methods() -> list[Method]:
    echo = Method("Echo", lambda message: message.answer(message.data))
    silent = Method("Silent", lambda message: None)
    return [echo, Method("Sized", sized), Method("Failing", failing), silent, Method("Faulty", faulty)]


class Behind(Message):
    """What a method of ours sees of a call of grpcio's server."""

    def __init__(self, data: bytes, context: grpc.ServicerContext) -> None:
        self.data = data
        self._context, self._answered = context, threading.Event()
        self._result = b""

    def answer(self, data: bytes) -> None:
        self._result = data
        self._answered.set()

    def fail(self, status: int, text: str = "") -> None:
        code = next(code for code in grpc.StatusCode if code.value[0] == status)
        self._context.abort(code, text)

    def wait(self) -> bytes:
        self._context.add_callback(self._answered.set)
        self._answered.wait(DEADLINE)
        return self._result


class Reference(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The same methods behind grpcio's server."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        method = next((one for one in methods() if one.path.decode() == details.method), None)
        return None if method is None else grpc.unary_unary_rpc_method_handler(partial(self._run, method))

    @staticmethod
    def _run(method: Method, data: bytes, context: grpc.ServicerContext) -> bytes:
        message = Behind(data, context)
        method.handle([message])
        return message.wait()


@contextmanager
def reference() -> Iterator[str]:
    options = [("grpc.max_receive_message_length", LARGEST)]
    server = grpc.server(ThreadPoolExecutor(8), [Reference()], options=options)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait(DEADLINE)


@contextmanager
def ours() -> Iterator[str]:
    with serving(Grpc(methods(), largest=LARGEST)) as running:
        yield f"127.0.0.1:{running.port}"


SERVERS = {"ours": ours, "grpcio": reference}


class Outcome(NamedTuple):
    """What a caller sees of a call."""

    code: grpc.StatusCode
    details: str
    size: int
    initial: list[str]
    trailing: list[str]


def ask(channel: grpc.Channel, method: str, data: bytes, **options: Any) -> Outcome:
    call = channel.unary_unary(f"/test.Test/{method}")
    try:
        answer, told = call.with_call(data, timeout=options.pop("timeout", DEADLINE), **options)
    except grpc.RpcError as error:
        answer, told = b"", error
    initial, trailing = ([key for key, _ in part or ()] for part in (told.initial_metadata(), told.trailing_metadata()))
    return Outcome(told.code(), told.details() or "", len(answer), initial, trailing)


@pytest.fixture(scope="module")
def channels() -> Iterator[dict[str, grpc.Channel]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                grpc.insecure_channel(
                    stack.enter_context(serve()), options=[("grpc.max_receive_message_length", 64 << 20)]
                )
            )
            for name, serve in SERVERS.items()
        }


CASES: dict[str, tuple[str, bytes, dict[str, Any]]] = {
    "echo": ("Echo", b"hello", {}),
    "empty": ("Echo", b"", {}),
    "gzip": ("Echo", b"x" * 50_000, {"compression": grpc.Compression.Gzip}),
    "short gzip": ("Echo", b"x", {"compression": grpc.Compression.Gzip}),
    "metadata": ("Echo", b"x", {"metadata": [("x-one", "1"), ("x-two-bin", b"\0\1\2")]}),
    "largest": ("Echo", bytes(LARGEST), {}),
    "large answer": ("Sized", b"5000000", {}),
    "unknown method": ("Nothing", b"", {}),
    "deadline": ("Silent", b"", {"timeout": 0.1}),
    **{
        f"status {code.value[0]}": ("Failing", b"%d why" % code.value[0], {})
        for code in grpc.StatusCode
        if code.value[0]
    },
    "text": ("Failing", "3 50 % kränk\nZeile \u2603".encode(), {}),
    "no text": ("Failing", b"5 ", {}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_grpc_clients_see_the_same_answers(
    channels: dict[str, grpc.Channel], case: tuple[str, bytes, dict[str, Any]]
) -> None:
    method, data, options = case
    seen = {name: ask(channel, method, data, **dict(options)) for name, channel in channels.items()}
    if method == "Nothing":  # each has its own words
        assert {one.code for one in seen.values()} == {grpc.StatusCode.UNIMPLEMENTED}
    else:
        assert seen["ours"] == seen["grpcio"]


@pytest.mark.parametrize(
    ("method", "data", "options"),
    [("Echo", bytes(LARGEST + 1), {}), ("Echo", bytes(LARGEST + 1), {"compression": grpc.Compression.Gzip})],
)
def test_oversized_message_has_the_same_status(
    channels: dict[str, grpc.Channel], method: str, data: bytes, options: dict[str, Any]
) -> None:
    codes = {ask(channel, method, data, **dict(options)).code for channel in channels.values()}
    assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}


def test_body_beyond_the_wire_limit_has_that_status_too() -> None:
    with (
        serving(Grpc(methods()), limits=ServerLimits(body=50_000)) as running,
        grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        assert ask(channel, "Echo", bytes(1_000_000)).code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert ask(channel, "Echo", b"hello").size == 5


def test_internal_error_reveals_nothing(channels: dict[str, grpc.Channel]) -> None:
    outcome = ask(channels["ours"], "Faulty", b"")
    assert (outcome.code, outcome.details) == (grpc.StatusCode.INTERNAL, "a fault of this server")


def test_concurrent_calls_share_one_connection(channels: dict[str, grpc.Channel]) -> None:
    call = channels["ours"].unary_unary("/test.Test/Echo")
    futures = [call.future(b"%d" % number, timeout=DEADLINE) for number in range(500)]  # beyond the streams allowed
    assert [future.result() for future in futures] == [b"%d" % number for number in range(500)]


def test_a_call_that_is_cancelled_is_gone() -> None:
    kept: list[Message] = []
    with (
        serving(Grpc([Method("Keep", kept.append)])) as running,
        grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        future = channel.unary_unary("/test.Test/Keep").future(b"x", timeout=DEADLINE)
        wait_until(lambda: bool(kept), "the call")
        assert kept[0].expires is not None
        assert not kept[0].gone
        future.cancel()
        wait_until(lambda: kept[0].gone, "the cancellation")
        running.run(lambda: kept[0].answer(b"late"))


def test_a_channel_outlives_a_drained_server_on_the_same_port() -> None:
    with serving(Grpc(methods())) as running, grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        assert ask(channel, "Echo", b"hello").size == 5
        running.call(running.server.drain(5.0))
        assert ask(channel, "Echo", b"hello", timeout=0.3).code in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )


def test_grpc_works_over_tls(tmp_path: Path) -> None:
    certificate = Certificate.make("localhost", tmp_path)
    with serving(Grpc(methods()), tls=ServerTls(certificate.path, certificate.key)) as running:
        credentials = grpc.ssl_channel_credentials(certificate.path.read_bytes())
        options = [("grpc.ssl_target_name_override", "localhost")]
        with grpc.secure_channel(f"127.0.0.1:{running.port}", credentials, options) as channel:
            assert ask(channel, "Echo", b"hello").size == 5
            assert ask(channel, "Sized", b"300000").size == 300_000


class Talking:
    """Sends back what it hears, as it is framed."""

    def __init__(self, exchange: StreamingCall) -> None:
        self._exchange = exchange
        self.gone = False
        exchange.start(ANSWER)

    def received(self, data: bytes) -> None:
        self._exchange.send(data)

    def ended(self) -> None:
        self._exchange.finish([(b"grpc-status", b"0")])

    def lost(self) -> None:
        self.gone = True


def test_streaming_call_runs_in_both_directions() -> None:
    talks: list[Talking] = []

    def opener(exchange: StreamingCall) -> Talking:
        talks.append(Talking(exchange))
        return talks[-1]

    with (
        serving(Grpc(methods()), openers={b"/test.Test/Talk": opener}) as running,
        grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        said: queue.Queue[bytes | None] = queue.Queue()
        heard = channel.stream_stream("/test.Test/Talk")(iter(said.get, None), timeout=DEADLINE)
        for text in (b"one", b"", b"x" * 300_000, b"three"):
            said.put(text)
            assert next(heard) == text
        assert ask(channel, "Echo", b"meanwhile").size == 9
        said.put(None)
        assert list(heard) == []
        assert heard.code() == grpc.StatusCode.OK
        given_up = channel.stream_stream("/test.Test/Talk")(iter(said.get, None), timeout=DEADLINE)
        said.put(b"hello")
        assert next(given_up) == b"hello"
        given_up.cancel()
        wait_until(lambda: talks[1].gone, "the stream's end to be seen")
        said.put(None)
