"""Answers about a stream itself."""

from app.models import Project, Sandbox, Stream
from resolvers.context import Context


async def stream_of(context: Context, owner: Project | Sandbox) -> Stream:
    stream: Stream = await context.loaders.streams.load(owner.id)
    return stream
