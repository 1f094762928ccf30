//! A process beside the test that maps files, locks them, or runs as somebody else:
//! a python program that takes one line for each thing to do and answers with one.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::run::{command, wait_within};

/// What an answer may take.
const ANSWER: Duration = Duration::from_secs(60);

const PROGRAM: &str = r#"
import errno, fcntl, mmap, os, signal, struct, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
maps, files = {}, {}
LOCK = "hhqqi4x"
def lock(slot, command, kind, start, length):
    kind = {"r": fcntl.F_RDLCK, "w": fcntl.F_WRLCK, "u": fcntl.F_UNLCK}[kind]
    arg = struct.pack(LOCK, kind, 0, int(start), int(length), 0)
    got = fcntl.fcntl(files[slot], command, arg)
    kind, _, start, length, pid = struct.unpack(LOCK, got)
    return "free" if kind == fcntl.F_UNLCK else "%s %d %d %s" % (
        "rw"[kind == fcntl.F_WRLCK], start, length, "pid" if pid > 0 else pid)
def do(word, *args):
    if word == "map":
        slot, path, length = args
        fd = os.open(path, os.O_RDWR)
        try: maps[slot] = mmap.mmap(fd, int(length), mmap.MAP_SHARED)
        finally: os.close(fd)
    elif word == "mapped":
        slot, offset, length = args[0], int(args[1]), int(args[2])
        m = maps[slot]
        if offset + length > m.size(): return "short"
        return m[offset:offset + length].hex()
    elif word == "store":
        slot, offset, text = args[0], int(args[1]), args[2].encode()
        m = maps[slot]
        if offset + len(text) > min(len(m), m.size()): return "short"
        m[offset:offset + len(text)] = text
    elif word == "msync": maps[args[0]].flush()
    elif word == "unmap": maps.pop(args[0]).close()
    elif word == "reset":
        for m in maps.values(): m.close()
        for f in files.values(): os.close(f)
        maps.clear(); files.clear()
    elif word == "open": files[args[0]] = os.open(args[1], os.O_RDWR | os.O_CREAT, 0o644)
    elif word == "close": os.close(files.pop(args[0]))
    elif word == "lock": lock(args[0], fcntl.F_SETLK, *args[1:])
    elif word == "wait": lock(args[0], fcntl.F_SETLKW, *args[1:])
    elif word == "getlock": return lock(args[0], fcntl.F_GETLK, *args[1:])
    elif word == "ofd": lock(args[0], fcntl.F_OFD_SETLK, *args[1:])
    elif word == "flock":
        how = {"s": fcntl.LOCK_SH, "x": fcntl.LOCK_EX, "u": fcntl.LOCK_UN}[args[1]]
        fcntl.flock(files[args[0]], how | fcntl.LOCK_NB)
    elif word == "waitflock": fcntl.flock(files[args[0]], fcntl.LOCK_EX)
    elif word == "dup": files[args[1]] = os.dup(files[args[0]])
    elif word == "write": return str(os.pwrite(files[args[0]], args[2].encode(), int(args[1])))
    elif word == "truncate": os.ftruncate(files[args[0]], int(args[1]))
    elif word == "size": return str(os.fstat(files[args[0]]).st_size)
    elif word == "time": return str(os.fstat(files[args[0]]).st_mtime_ns)
    else: raise ValueError(word)
    return "ok"
for line in sys.stdin:
    try: answer = do(*line.rstrip("\n").split("\t"))
    except OSError as e: answer = errno.errorcode[e.errno]
    except KeyError: answer = "none"
    except ValueError as e: answer = "ValueError"
    print(answer, flush=True)
"#;

/// The process. It ends with its owner.
pub struct Helper {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Helper {
    /// Starts one as this user.
    pub fn new() -> Self {
        Self::start(command(["/usr/bin/python3"]))
    }

    /// Starts one with `setpriv` and such in front.
    pub fn start(mut cmd: Command) -> Self {
        cmd.args(["-S", "-u", "-c", PROGRAM]);
        cmd.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = cmd.spawn().expect("python starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (tx, answers) = channel();
        // Ends with the process, whose output it reads.
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if tx.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            input,
            answers,
        }
    }

    /// The process's number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has one thing done.
    #[track_caller]
    pub fn ask(&mut self, words: &[&str]) -> String {
        self.tell(words);
        self.answer(ANSWER)
            .unwrap_or_else(|| panic!("no answer to {words:?}"))
    }

    /// As [`Helper::ask`], with a path for the second word.
    #[track_caller]
    pub fn ask_path(&mut self, word: &str, slot: &str, path: &Path, rest: &[&str]) -> String {
        let path = path.to_str().expect("names of tests are ASCII");
        let words: Vec<&str> = [word, slot, path].iter().chain(rest).copied().collect();
        self.ask(&words)
    }

    /// Has one thing done, without waiting for the answer.
    #[track_caller]
    pub fn tell(&mut self, words: &[&str]) {
        let input = self.input.as_mut().expect("open until dropped");
        writeln!(input, "{}", words.join("\t")).expect("the helper reads");
    }

    /// The next answer, if it comes in time.
    pub fn answer(&mut self, limit: Duration) -> Option<String> {
        self.answers.recv_timeout(limit).ok()
    }

    /// Sends the process a signal and waits for its end.
    pub fn end_by(&mut self, signal: rustix::process::Signal) -> bool {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the helper is there");
        wait_within(&mut self.child, ANSWER).is_some()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.input = None;
        if wait_within(&mut self.child, Duration::from_secs(5)).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
