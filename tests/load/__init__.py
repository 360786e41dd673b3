"""Load for the servers of the walks, in processes of its own, and the account that is kept outside of the system."""


def text_of(sandbox_id: str, number: int) -> str:
    """How the remark of that number begins in that sandbox."""
    return f"{sandbox_id} {number} "
