"""SequenceLock: a read meets a batch of writes before or after, never within."""

import pytest

from declctl.informer.stores.thread_safe_store import SequenceLock


@pytest.mark.parametrize(("batches", "copies"), [(0, 1), (1, 2), (9, 2)])
def test_a_read_that_a_batch_has_run_through_is_made_once_more(batches, copies):
    """A copy that was begun before a batch and ended after it may have something of both.

    Reading costs nothing more while nobody writes, and a writer that never rests holds up no reader: the
    second copy is made while it may not write.
    """
    lock, reads = SequenceLock(), []

    def copy():
        if len(reads) < batches:
            with lock:
                pass  # a batch begins and ends while this is copied
        reads.append(1)
        return len(reads)

    assert lock.read(copy) == copies


def test_the_writer_is_let_in_and_a_fault_lets_everybody_out():
    """What is raised in a batch comes out of it, and the next read is an ordinary one."""
    lock, reads = SequenceLock(), []

    def batch():
        with lock:
            reads.append(lock.read(lambda: "so far"))
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        batch()
    lock.read(lambda: reads.append("then"))
    assert reads == ["so far", "then"]
