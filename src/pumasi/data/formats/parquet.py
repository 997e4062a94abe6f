""".parquet, by pyarrow. Rows travel as Arrow tables; parts have the source's schema, metadata and compression."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumasi.data.files import BLOCK, Tick
from pumasi.data.formats.base import CHUNK, ROW_OVERHEAD, Classes, Source, Stream, damaged, unknown_key
from pumasi.errors import SystemTrouble

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_ROWS = 1024
"""Read at once: a value may take a thousand times as much memory as in the file, where equal ones are stored once."""
_COMPRESSIONS = {"UNCOMPRESSED": "none", "LZ4_RAW": "lz4"}


def open_source(path: Path, key: str | None, scratch: Path, tick: Tick) -> Source:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise SystemTrouble(".parquet files need the package pyarrow.", "Install it: pip install pyarrow") from None
    stream = _Tables(path)
    return Source(stream.rows, [stream], None if key is None else stream.classes(key, tick))


def _memory(batch: Any) -> int:
    """Twice its values: whoever sorts or writes them holds them a second time."""
    return 2 * int(batch.nbytes) + ROW_OVERHEAD * len(batch)


class _Tables(Stream):
    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self._path = path
        with self._open() as file:
            self._metadata = file.metadata
            self._schema = file.schema_arrow
        self.rows = self._metadata.num_rows
        # A dictionary would be repeated in every piece of a chunk: its values travel in its place.
        self._travels = pa.schema(
            field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
            for field in self._schema
        )

    def _open(self) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(self._path, buffer_size=BLOCK, pre_buffer=False, page_checksum_verification=True)
        except pa.ArrowException:
            raise damaged(self._path, "is no .parquet file, or a damaged one") from None

    def _batches(self, columns: list[str] | None = None) -> Iterator[Any]:
        """Small ones, whatever the size of the row groups."""
        import pyarrow as pa

        try:
            with self._open() as file:
                for group in range(self._metadata.num_row_groups):
                    about = self._metadata.row_group(group)
                    most = CHUNK * about.num_rows // max(1, about.total_byte_size)
                    step = min(max(1, most), _MOST_ROWS)
                    yield from file.iter_batches(step, row_groups=[group], columns=columns, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise damaged(self._path, f"is damaged: {error}".rstrip(".")) from None

    def chunks(self) -> Iterator[Any]:
        import pyarrow as pa

        batches, size = [], 0
        for batch in self._batches():
            batches.append(batch)
            size += _memory(batch)
            if size >= CHUNK:
                chunk = pa.Table.from_batches(batches).cast(self._travels)
                batches, size = [], 0
                yield chunk
        if batches:
            yield pa.Table.from_batches(batches).cast(self._travels)

    def classes(self, key: str, tick: Tick) -> array[int]:
        if key not in self._schema.names:
            raise unknown_key(self._path, key, "column", self._schema.names)
        classes = Classes(self._path, key)
        for batch in self._batches([key]):
            # Texts, because lists can't be looked up, and because a NaN is not equal to another.
            classes.add(map(repr, batch.column(0).to_pylist()))
            tick("looking at classes", len(classes.codes), self.rows)
        return classes.codes

    def write(self, target: Path, chunks: Iterable[Any], rows: int) -> None:
        import pyarrow.parquet as pq

        usual = self._metadata.row_group(0).column(0).compression
        compression = _COMPRESSIONS.get(usual, usual.lower())
        with pq.ParquetWriter(target, self._schema, compression=compression) as writer:
            for chunk in chunks:
                writer.write_table(chunk.cast(self._schema))

    def sizes(self) -> array[int]:
        sizes = array("I")
        for batch in self._batches():
            sizes.extend(array("I", [_memory(batch) // len(batch)]) * len(batch))
        return sizes

    def take(self, chunk: Any, rows: NDArray[Any]) -> Any:
        return chunk.take(rows)

    def join(self, chunks: Iterable[Any]) -> Any:
        import pyarrow as pa

        return pa.concat_tables(chunks)

    def pack(self, chunk: Any) -> bytes:
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._travels.remove_metadata()) as writer:
            writer.write_table(chunk.combine_chunks())
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    def unpack(self, data: bytes) -> Any:
        import pyarrow as pa

        return pa.ipc.open_stream(data).read_all()
