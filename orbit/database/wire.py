"""Statements there and answers back as Orbit needs them: one packet out, and a reader that makes nothing it can spare.

PyMySQL reads an answer into half a dozen objects, and describes each column in ten ways. With a dozen statements in a
packet that costs the process more than the database needs for them. The connection, its handshake, its limits of time
and its errors stay PyMySQL's; only the answers to text that is sent here are read here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from socket import socket
from struct import Struct as Layout
from typing import Any

from msgspec import Struct
from pymysql import err
from pymysql.connections import TEXT_TYPES, Connection
from pymysql.constants import COMMAND, CR, FIELD_TYPE, SERVER_STATUS
from pymysql.converters import through

_HEAD = Layout("<iB")  # the length in three bytes, the packet's number, which is 0, and the command
_READ_BYTES = 65_536
_WHOLE = 0xFFFFFF  # a packet of this size goes on in the next
_OK, _NULL, _END, _ERROR = 0x00, 0xFB, 0xFE, 0xFF
_END_BYTES_MAX = 8
_BINARY = 63
_WIDTHS = {0xFC: 2, 0xFD: 3, 0xFE: 8}

Converter = Callable[[bytes], Any] | None


class Answer(Struct, frozen=True):
    """What a statement matched, and its rows as the driver would give them."""

    matched: int
    rows: Sequence[tuple[Any, ...]]


class WireConnection(Connection):
    """PyMySQL's connection with a short way for statements that are text already."""

    # Parts of PyMySQL's own connection that its stubs leave out.
    _sock: socket
    _result: object
    _execute_command: Callable[[int, bytes], None]
    _write_bytes: Callable[[bytes], None]
    _force_close: Callable[[], None]

    def __init__(self, *args: Any, **options: Any) -> None:
        self._chunk = b""
        self._at = 0
        self._converters: dict[bytes, Converter] = {}
        super().__init__(*args, **options)

    def exchange(self, text: str) -> list[Answer]:
        """Send statements, parted by semicolons, and return the answers of all; raises the first error of any."""
        try:
            self._ask(text.encode(self.encoding))
            answers = self._answers()
            if self._at != len(self._chunk):
                self._force_close()  # it says more than it was asked: a server that goes away does
        except err.MySQLError:
            raise  # told in full: the connection is fit for a ROLLBACK, or closed
        except BaseException:
            self._force_close()
            raise
        return answers

    def _ask(self, text: bytes) -> None:
        if self._result is not None or not self.open or len(text) + 1 >= _WHOLE:
            # An answer that the driver has read itself, no connection, or a text in several packets: all its own.
            self._execute_command(COMMAND.COM_QUERY, text)
            return
        packet = _HEAD.pack(len(text) + 1, COMMAND.COM_QUERY) + text
        try:
            sent = self._sock.send(packet)
        except OSError:
            sent = 0  # the driver's way will meet it again, and names it
        if sent < len(packet):
            self._write_bytes(packet[sent:])

    def commit(self) -> None:
        """Commit, by the short way too."""
        self.exchange("COMMIT")

    def _answers(self) -> list[Answer]:
        answers: list[Answer] = []
        status = SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS
        while status & SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS:
            packet = self._next()
            if packet[0] == _OK:
                matched, at = _number(packet, 1)
                at = _number(packet, at)[1]
                status = packet[at] | packet[at + 1] << 8
                answers.append(Answer(matched, ()))
            else:
                converters = [self._converter(self._next()) for _ in range(_number(packet, 0)[0])]
                self._next()
                rows: list[tuple[Any, ...]] = []
                while (packet := self._next())[0] != _END or len(packet) > _END_BYTES_MAX:
                    rows.append(_row(packet, converters))
                status = packet[3] | packet[4] << 8
                answers.append(Answer(len(rows), rows))
        self.server_status = status
        return answers

    def _next(self) -> bytes:
        """Read one packet; raises the error that it tells of."""
        chunk, at = self._chunk, self._at
        start = at + 4
        end = start + (chunk[at] | chunk[at + 1] << 8 | chunk[at + 2] << 16) if len(chunk) >= start else 0
        if start < end <= len(chunk) and end - start < _WHOLE:
            self._at = end
            packet = chunk[start:end]
        else:
            packet = self._next_apart()
        if packet[0] == _ERROR:
            err.raise_mysql_exception(packet)
        return packet

    def _next_apart(self) -> bytes:
        """Read a packet that has not arrived whole, or comes in parts."""
        packet, size = b"", _WHOLE
        while size == _WHOLE:
            head = self._bytes(4)
            size = head[0] | head[1] << 8 | head[2] << 16
            packet += self._bytes(size)
        return packet

    def _bytes(self, count: int) -> bytes:
        if len(self._chunk) - self._at < count:
            self._chunk, self._at = self._more(self._chunk[self._at :], count), 0
        at = self._at
        self._at = at + count
        return self._chunk[at : self._at]

    def _more(self, chunk: bytes, count: int) -> bytes:
        parts, size = [chunk], len(chunk)
        try:
            while size < count:
                read = self._sock.recv(_READ_BYTES)
                if not read:
                    raise ConnectionError("the server has closed the connection")
                parts.append(read)
                size += len(read)
        except OSError as error:
            self._force_close()
            message = f"Lost connection to MySQL server during query ({error})"
            raise err.OperationalError(CR.CR_SERVER_LOST, message) from error
        return b"".join(parts)

    def _converter(self, described: bytes) -> Converter:
        """Tell how a column's values are read. Its description ends in 0c, character set, length, type, five more."""
        key = described[-12:-10] + described[-6:-5]
        try:
            return self._converters[key]
        except KeyError:
            found = self._converters[key] = self._converter_make(key[0] | key[1] << 8, key[2])
            return found

    def _converter_make(self, charset: int, kind: int) -> Converter:
        """Choose as PyMySQL does."""
        decode: Callable[[str], Any] | None = self.decoders.get(kind)
        if decode is through:
            decode = None
        is_text = kind in TEXT_TYPES or kind == FIELD_TYPE.JSON
        if kind in TEXT_TYPES and charset == _BINARY:
            return None
        if decode is int:
            return int
        encoding = self.encoding if is_text else "ascii"
        if decode is None:
            return lambda value: str(value, encoding)
        known = decode
        return lambda value: known(str(value, encoding))


def _number(packet: bytes, at: int) -> tuple[int, int]:
    """Read a length-encoded number; return it and where the next thing begins."""
    first = packet[at]
    if first < _NULL:
        return first, at + 1
    end = at + 1 + _WIDTHS[first]
    return int.from_bytes(packet[at + 1 : end], "little"), end


def _row(packet: bytes, converters: Sequence[Converter]) -> tuple[Any, ...]:
    values: list[Any] = []
    at = 0
    for convert in converters:
        size = packet[at]
        if size < _NULL:
            at += 1
        elif size == _NULL:
            values.append(None)
            at += 1
            continue
        else:
            size, at = _number(packet, at)
        value = packet[at : at + size]
        values.append(value if convert is None else convert(value))
        at += size
    return tuple(values)
