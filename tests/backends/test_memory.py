"""Where the C library takes large blocks from, in a process of its own: its options hold for all of a process."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import ctypes, json

from serve_app.backends.memory import give_memory_back, keep_large_blocks_apart, large_blocks_apart

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
        ("arena", "ordblks", "smblks", "mapped", "mapped_bytes", "usmblks", "fsmblks", "used", "free", "keepcost")]

libc.mallinfo2.restype = Info

def apart(nbytes):
    give_memory_back()  # free room of the heap is used first
    before = libc.mallinfo2().mapped
    block = libc.malloc(nbytes)
    found = libc.mallinfo2().mapped - before
    libc.free(block)
    return found

MIB = 2**20
libc.free(libc.malloc(24 * MIB))  # from now on, the C library would take blocks of up to this size from the heap
found = {"before": apart(4 * MIB)}
with large_blocks_apart():
    found["inside"] = apart(4 * MIB)
    found["small inside"] = apart(MIB // 2)
found["after"] = apart(4 * MIB)
found["huge after"] = apart(40 * MIB)
keep_large_blocks_apart()
found["kept"] = apart(4 * MIB)
print(json.dumps(found))
"""


def test_large_blocks_are_apart_while_a_model_is_loaded_and_in_the_heap_otherwise() -> None:
    """A block that is apart goes back to the system when it is freed, whatever lies around it."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60.0)
    assert json.loads(ran.stdout) == {
        "before": 0,
        "inside": 1,
        "small inside": 0,
        "after": 0,
        "huge after": 1,
        "kept": 1,
    }


IN_A_THREAD = """
import ctypes, json, threading

from serve_app.backends.memory import give_end_of_heap_back, give_memory_back, large_blocks_apart

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
KIB = 1024
found = {}

def held():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4 * KIB

def work():
    blocks = [0] * 4096  # nothing else lies between them, or behind
    before = held()
    for at in range(4096):
        blocks[at] = libc.malloc(4 * KIB)
        ctypes.memset(blocks[at], 1, 4 * KIB)
    for block in blocks:
        libc.free(block)
    give_memory_back()
    found["freed"] = held() - before
    give_end_of_heap_back()
    found["given back"] = held() - before

with large_blocks_apart():
    pass
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(json.dumps(found))
"""


def test_the_end_of_the_heap_of_a_thread_is_given_back() -> None:
    """16 MiB of small blocks stay with the process otherwise, in glibc, after `malloc_trim` too."""
    ran = subprocess.run([sys.executable, "-c", IN_A_THREAD], capture_output=True, text=True, check=True, timeout=60.0)
    found = json.loads(ran.stdout)
    assert found["freed"] > 12 * 1024**2
    assert found["given back"] < 4 * 1024**2
