"""Attempts to escape from the sandbox. Each one is code that succeeds if nothing prevents it.

`SECRET`, `VICTIM` and `PORT` are set before: a file outside, a process to kill, a loopback server to reach. An attempt
escapes if it ends without an exception. The helper `check(result)` is for C calls, which report failure by their
result.
"""

import sysconfig
from pathlib import Path

INSTALLED_PACKAGES = next(
    path
    for path in (Path(sysconfig.get_path("stdlib"), "site-packages"), Path("/usr/lib/python3/dist-packages"))
    if path.is_dir()
)
"""Where the base interpreter's packages are: below its standard library or, for Debian's Python, beside it."""
PRELUDE = """
import ctypes, errno, fcntl, mmap, os, resource, signal, socket, struct, subprocess, sys, threading, time
SECRET, VICTIM, PORT, OUTSIDE = {secret!r}, {victim}, {port}, {outside!r}
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result
def syscall(number, *arguments):
    return check(libc.syscall(number, *arguments))
"""

FILES = {
    "open": "open(SECRET).read()",
    "os.open": "os.open(SECRET, os.O_RDONLY)",
    "io.FileIO": "import io; io.FileIO(SECRET).read()",
    "relative path": "open('../' * 20 + SECRET).read()",
    "dot dot": "os.listdir('..')",
    "root": "os.listdir('/')",
    "folder above": "os.listdir(os.path.dirname(OUTSIDE))",
    "mmap": "mmap.mmap(os.open(SECRET, os.O_RDONLY), 0, prot=mmap.PROT_READ)[:]",
    "path only then fdopen": "open(f'/proc/self/fd/{os.open(SECRET, os.O_PATH)}').read()",
    "C open": "check(libc.open(SECRET.encode(), 0))",
    "openat": "syscall(257, -100, SECRET.encode(), 0, 0)",
    "openat2": "syscall(437, -100, SECRET.encode(), struct.pack('QQQ', 0, 0, 0), 24)",
    "open by handle": "b = ctypes.create_string_buffer(struct.pack('Ii', 120, 0) + bytes(120)); m = ctypes.c_int();"
    "syscall(303, -100, SECRET.encode(), b, ctypes.byref(m), 0)",
    "symlink": "os.symlink(SECRET, 'link'); open('link').read()",
    "hard link": "os.link(SECRET, 'hard'); open('hard').read()",
    "rename in": "os.rename(SECRET, 'mine'); open('mine').read()",
    "exchange": "open('x', 'w').close(); syscall(316, -100, SECRET.encode(), -100, b'x', 2); open('x').read()",
    "write": "open(OUTSIDE + '/new', 'w').write('x')",
    "append": "open(SECRET, 'a').write('x')",
    "truncate": "os.truncate(SECRET, 0)",
    "truncate by opening to read": "os.open(SECRET, os.O_RDONLY | os.O_TRUNC)",
    "truncate by opening without access": "os.open(SECRET, 3 | os.O_TRUNC)",
    "remove": "os.unlink(SECRET)",
    "make a folder": "os.mkdir(OUTSIDE + '/folder')",
    "chmod": "os.chmod(SECRET, 0o777)",
    "chown": "os.chown(SECRET, 0, 0)",
    "times": "os.utime(SECRET, (1, 1))",
    "attribute": "os.setxattr(SECRET, 'user.x', b'1')",
    "unnamed file": "os.open(OUTSIDE, os.O_TMPFILE | os.O_RDWR)",
    "chdir and read": "os.chdir(os.path.dirname(SECRET)); open(os.path.basename(SECRET)).read()",
    "chroot": "os.chroot(OUTSIDE)",
    "mount": "check(libc.mount(b'none', b'.', b'tmpfs', 0, None))",
    "device": "open('/dev/urandom', 'rb').read(1)",
    "shared memory": "open('/dev/shm/understudy-escape', 'w').write('x')",
    "import a planted module": "sys.path.insert(0, OUTSIDE); import planted",
    "import a planted zip": "import zipimport; zipimport.zipimporter(OUTSIDE + '/planted.zip')",
    "installed packages": f"open({str(next(filter(Path.is_file, INSTALLED_PACKAGES.rglob('*'))))!r}).read()",
    "list installed packages": f"os.listdir({str(INSTALLED_PACKAGES)!r})",
    "whiteout": "open('w', 'w').close(); syscall(316, -100, b'w', -100, b'white', 4)",
    "nameless file": "os.open('.', os.O_TMPFILE | os.O_RDWR)",
    "load a library": "ctypes.CDLL(OUTSIDE + '/planted.so')",
    "sqlite attach": "import sqlite3; sqlite3.connect(OUTSIDE + '/new.db').execute('create table t (x)')",
    "linecache": "import linecache; check(len(linecache.getlines(SECRET)) - 1)",
    "read link": "os.readlink('/proc/self/exe')",
}
PROC = {
    "own environment": "open('/proc/self/environ').read()",
    "own memory": "open('/proc/self/mem', 'rb')",
    "own descriptors": "os.listdir('/proc/self/fd')",
    "parent's command": "open(f'/proc/{VICTIM}/cmdline').read()",
    "parent's environment": "open(f'/proc/{VICTIM}/environ').read()",
    "list of processes": "os.listdir('/proc')",
    "root of another": "os.listdir(f'/proc/{VICTIM}/root')",
    "kernel settings": "open('/proc/sys/kernel/hostname').read()",
    "control groups": "os.listdir('/sys/fs/cgroup')",
}
NETWORK = {
    "connect": "socket.create_connection(('127.0.0.1', PORT), timeout=2)",
    "datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "IPv6": "socket.socket(socket.AF_INET6, socket.SOCK_STREAM)",
    "unix socket": "socket.socket(socket.AF_UNIX)",
    "pair of sockets": "socket.socketpair()",
    "raw socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "virtual machine socket": "socket.socket(40, socket.SOCK_STREAM)",
    "listen": "socket.create_server(('127.0.0.1', 0))",
    "urllib": "import urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{PORT}', timeout=2)",
    "a descriptor as socket": "socket.socket(fileno=1).send(b'x')",
    "io_uring": "syscall(425, 4, ctypes.create_string_buffer(256))",
}
PROCESSES = {
    "fork": "pid = os.fork()\nif pid == 0: os._exit(0)",
    "vfork": "syscall(58)",
    "clone3": "syscall(435, ctypes.create_string_buffer(88), 88)",
    "subprocess": "subprocess.run(['/bin/true'], check=True)",
    "os.system": "check(-os.system('true'))",
    "posix_spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "exec": "os.execv('/bin/true', ['true'])",
    "execveat": "syscall(322, -100, b'/bin/true', 0, 0, 0)",
    "exec from memory": "os.execv(f'/proc/self/fd/{os.memfd_create(\"x\")}', ['x'])",
    "thread": "threading.Thread(target=time.sleep, args=(0,)).start()",
    "multiprocessing": "import multiprocessing as m; p = m.Process(target=print); p.start(); p.join()",
    "pseudo terminal": "import pty; pty.fork()",
}
OTHERS = {
    "kill": "os.kill(VICTIM, signal.SIGTERM)",
    "probe": "os.kill(VICTIM, 0)",
    "kill all": "os.kill(-1, 0)",
    "kill the group": "os.killpg(0, 0)",
    "tgkill": "syscall(234, VICTIM, VICTIM, 15)",
    "queued signal": "syscall(129, VICTIM, 15, ctypes.create_string_buffer(128))",
    "pidfd": "os.pidfd_open(VICTIM)",
    "signal by descriptor": "r, w = os.pipe(); fcntl.fcntl(r, fcntl.F_SETOWN, VICTIM)",
    "signal of choice": "r, w = os.pipe(); fcntl.fcntl(r, 10, signal.SIGKILL)",
    "signal by ioctl": "r, w = os.pipe(); fcntl.ioctl(r, 0x8901, struct.pack('i', VICTIM))",
    "type into a terminal": "fcntl.ioctl(0, 0x5412, b'x'); raise SystemExit if not os.isatty(0) else None",
    "ptrace": "check(libc.ptrace(16, VICTIM, 0, 0))",
    "read memory": "b = ctypes.create_string_buffer(8); v = struct.pack('PN', ctypes.addressof(b), 8);"
    "syscall(310, VICTIM, v, 1, struct.pack('PN', 0, 8), 1, 0)",
    "priority": "os.setpriority(os.PRIO_PROCESS, VICTIM, 19)",
    "limits of another": "resource.prlimit(VICTIM, resource.RLIMIT_NOFILE)",
    "affinity of another": "os.sched_setaffinity(VICTIM, {0})",
    "session of another": "os.getsid(VICTIM)",
}
KERNEL = {
    "more files": "resource.setrlimit(resource.RLIMIT_NOFILE, (999999, 999999))",
    "more time": "resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))",
    "user namespace": "check(libc.unshare(0x10000000))",
    "enter a namespace": "check(libc.setns(0, 0))",
    "become root": "os.setuid(0)",
    "capabilities": "syscall(126, struct.pack('Ii', 0x20080522, 0), struct.pack('IIIIII', 1, 1, 1, 0, 0, 0))",
    "dumpable": "check(libc.prctl(4, 1, 0, 0, 0))",
    "another filter": "check(libc.prctl(22, 2, 0, 0, 0))",
    "eBPF": "syscall(321, 0, ctypes.create_string_buffer(128), 128)",
    "performance counters": "syscall(298, ctypes.create_string_buffer(struct.pack('II', 1, 112), 128), 0, -1, -1, 0)",
    "keys": "syscall(248, b'user', b'x', b'y', 1, -3)",
    "userfaultfd": "syscall(323, 1)",
    "shared segment": "syscall(29, 0, 4096, 0o1600)",
    "message queue": "syscall(240, b'understudy', 0o102, 0o600, 0)",
    "semaphore": "syscall(64, 0, 1, 0o1600)",
    "personality": "syscall(135, 0x0040000)",
    "timer that fires later": "signal.setitimer(signal.ITIMER_REAL, 0.001)",
    "alarm": "signal.alarm(5); check(0 if signal.alarm(0) == 5 else -1)",
    "clock": "time.clock_settime(time.CLOCK_REALTIME, time.time())",
    "host name": "socket.sethostname(socket.gethostname())",
    "watch files": "check(libc.inotify_init())",
    "locked memory": "check(libc.mlockall(1))",
    "ports": "check(libc.ioperm(0x80, 1, 1))",
    "unnamed memory": "os.memfd_create('x')",
}
ATTEMPTS = {
    f"{kind}: {name}": code
    for kind, some in {
        "files": FILES,
        "proc": PROC,
        "network": NETWORK,
        "processes": PROCESSES,
        "others": OTHERS,
        "kernel": KERNEL,
    }.items()
    for name, code in some.items()
}
FATAL_CALLS = {
    "32-bit numbers": "m = mmap.mmap(-1, 4096, prot=7); m.write(bytes.fromhex('b814000000cd80c3'));"
    "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()",
    "x32 numbers": "libc.syscall(0x40000000 | 39)",
}
"""Calls with the numbers of another architecture, for which the filter kills the process. The first one is getpid by
`int 0x80`.
"""


def wrap_attempt(code: str) -> str:
    """Return code that runs an attempt and prints as its last line `prevented: ERROR` or `ESCAPED`."""
    body = "\n".join(f"    {line}" for line in code.splitlines())
    handler = "except BaseException as e:\n    print('prevented:', type(e).__name__, e)"
    return f"try:\n{body}\n{handler}\nelse:\n    print('ESCAPED')\n"
