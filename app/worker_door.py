"""Where a worker lays down what is too large for an event: `PUT /blobs/<sha256>` with its sandbox's token."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from uuid import UUID

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from app import auth, blobs
from app.auth import Credentials, Principal
from app.blobs import Packed
from app.db import Database
from app.errors import AppError, BadUserInput, Forbidden, LimitReached, Unauthenticated, Unavailable
from app.masking import Masks

UPLOADS = 8  # at once in one process, each with up to 64 MiB packed and the same unpacked
UPLOADS_OF_A_SANDBOX = 2
UPLOAD_SECONDS = 120.0  # for the whole body
SILENCE_SECONDS = 10.0  # for the next part of it
ENCODINGS = ("identity", "gzip")

Authenticate = Callable[[Credentials], Awaitable[Principal]]


class Crowded(BadUserInput):
    code = "RATE_LIMITED"


class Slow(BadUserInput):
    """The body takes too long to arrive."""


class NotTaken(BadUserInput):
    """An encoding that is not unpacked here."""


# The first that fits: its status, and headers that say what to do.
_STATUSES: Sequence[tuple[type[AppError], int, Mapping[str, str]]] = (
    (Unauthenticated, 401, {"www-authenticate": "Bearer"}),
    (Forbidden, 403, {}),
    (blobs.TooLarge, 413, {}),
    (LimitReached, 413, {}),
    (Crowded, 429, {"retry-after": "1"}),
    (Unavailable, 503, {"retry-after": "1"}),
    (Slow, 408, {}),
    (NotTaken, 415, {}),
    (BadUserInput, 400, {}),
    (AppError, 500, {}),
)


class WorkerDoor:
    def __init__(self, db: Database, masks: Masks, authenticate: Authenticate) -> None:
        self._db = db
        self._masks = masks
        self._authenticate = authenticate
        self._places = asyncio.Semaphore(UPLOADS)
        self._uploads: Counter[UUID] = Counter()

    def routes(self) -> Sequence[BaseRoute]:
        return [Route("/blobs/{sha256}", self.put, methods=["PUT"])]

    async def put(self, request: Request) -> Response:
        """201 for a new blob, 200 for one that is there already."""
        try:
            new = await self._put(request)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody hears it
        except AppError as error:
            return _refusal(error, request)
        return JSONResponse({}, 201 if new else 200)

    async def _put(self, request: Request) -> bool:
        worker = await self._authenticate(Credentials(bearer=_bearer(request)))
        auth.admit(worker, auth.WORKER)
        sha256 = blobs.parsed(request.path_params["sha256"])
        if sha256 is None:
            raise BadUserInput("A blob's name is the sha256 of its bytes, in 64 hexadecimal digits in lower case.")
        encoding = request.headers.get("content-encoding", "identity").lower()
        if encoding not in ENCODINGS:
            raise NotTaken("A blob is sent packed with gzip, or as it is.")
        async with self._db.reading() as session:
            if await blobs.known(session, worker.id, sha256):
                return False
            mask = await self._masks.of(session, worker.id)
        if self._uploads[worker.id] >= UPLOADS_OF_A_SANDBOX:
            raise Crowded(f"A sandbox sends {UPLOADS_OF_A_SANDBOX} blobs at once; wait for one of them.")
        self._uploads[worker.id] += 1
        try:
            async with self._places:
                body = await _body(request)
                packed = await asyncio.to_thread(blobs.pack, body, sha256, mask, gzipped=encoding == "gzip")
                return await self._store(worker.id, packed)
        finally:
            self._uploads[worker.id] -= 1
            if not self._uploads[worker.id]:
                del self._uploads[worker.id]

    async def _store(self, sandbox_id: UUID, packed: Packed) -> bool:
        async with self._db.writing() as session:
            return await blobs.put(session, sandbox_id, packed)


async def _body(request: Request) -> bytes:
    """All of it, while it keeps coming; refused as soon as it says, or shows, that it is too large."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and (len(length) > 18 or int(length) > blobs.LARGEST_BYTES):
        raise blobs.TooLarge
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(UPLOAD_SECONDS), asyncio.timeout(SILENCE_SECONDS) as silence:
            async for part in request.stream():
                silence.reschedule(asyncio.get_running_loop().time() + SILENCE_SECONDS)
                parts.append(part)
                size += len(part)
                if size > blobs.LARGEST_BYTES:
                    raise blobs.TooLarge
    except TimeoutError:
        raise Slow("The body took too long to arrive.") from None
    return b"".join(parts)


def _bearer(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _refusal(error: AppError, request: Request) -> Response:
    """Errors as the API says them."""
    status, headers = next((status, headers) for kind, status, headers in _STATUSES if isinstance(error, kind))
    extensions = {"code": error.code, "requestId": request.scope["state"]["request_id"]}
    body = {"errors": [{"message": error.message, "extensions": extensions}]}
    return JSONResponse(body, status, headers={"cache-control": "no-store", **headers})
