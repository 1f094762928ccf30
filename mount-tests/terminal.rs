//! `nameifs top` in a terminal that the test reads as a person would.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Mounted, nameifs};
use crate::run::{Done, command, until, wait_within};

/// What a screen gets to show something, and the program to end.
pub const SOON: Duration = Duration::from_secs(20);

/// `nameifs top` in a terminal of its own, 24 lines of 80.
pub struct Live {
    child: Child,
    shown: Arc<Mutex<Vec<u8>>>,
    dir: PathBuf,
}

impl Live {
    /// Begins, and waits for the first screen.
    pub fn start(mounted: &Mounted, options: &str) -> Self {
        let inner = "exec 2>\"$DIR/stderr\"; stty rows 24 cols 80; tty >\"$DIR/tty\"; \
             stty -g >\"$DIR/before\"; bash -c 'echo $$ >\"$DIR/pid\"; \
             exec \"$NAMEIFS\" top $OPTIONS \"$MNT\"'; \
             code=$?; stty -g >\"$DIR/after\"; exit $code";
        let dir = mounted.place().dir("live");
        let mut cmd = command(["script", "-qec", inner, "/dev/null"]);
        cmd.env("SHELL", "/bin/bash")
            .env("TERM", "xterm")
            .env("DIR", &dir)
            .env("NAMEIFS", nameifs())
            .env("OPTIONS", options)
            .env("MNT", mounted.path());
        cmd.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = cmd.spawn().expect("script starts");
        let shown = Arc::new(Mutex::new(Vec::new()));
        let mut pipe = child.stdout.take().expect("it is piped");
        let into = Arc::clone(&shown);
        thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(n @ 1..) = pipe.read(&mut some) {
                into.lock().expect("no panic").extend_from_slice(&some[..n]);
            }
        });
        let live = Self { child, shown, dir };
        live.wait_for("the table", |screen| {
            screen.iter().any(|line| line.contains("CACHE SIZE NAME"))
        });
        live
    }

    fn bytes(&self) -> Vec<u8> {
        self.shown.lock().expect("no panic").clone()
    }

    /// What stands on the screen once it is as wanted.
    #[track_caller]
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&[String]) -> bool) -> Vec<String> {
        let seen = until(SOON, || {
            let screen = screen(&self.bytes());
            wanted(&screen).then_some(screen)
        });
        seen.unwrap_or_else(|| {
            let err = fs::read_to_string(self.dir.join("stderr")).unwrap_or_default();
            panic!("never {what}:\n{}\n{err}", screen(&self.bytes()).join("\n"))
        })
    }

    /// Types.
    pub fn press(&mut self, keys: &str) {
        let pipe = self.child.stdin.as_mut().expect("it is piped");
        pipe.write_all(keys.as_bytes()).expect("script reads");
    }

    /// What the shell around the program noted: tty, pid, before, after, stderr.
    pub fn file(&self, name: &str) -> String {
        let text = fs::read_to_string(self.dir.join(name)).unwrap_or_default();
        text.trim_end().to_owned()
    }

    /// Sends the program a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid().expect("a process number"), signal).expect("it runs");
    }

    fn pid(&self) -> Option<Pid> {
        self.file("pid").parse().ok().and_then(Pid::from_raw)
    }

    /// Waits for the end: the terminal is as it was, cursor and first screen too.
    #[track_caller]
    pub fn ended(mut self) -> Done {
        let status = wait_within(&mut self.child, SOON);
        let status = status.expect("it ends");
        let (before, after) = (self.file("before"), self.file("after"));
        assert!(
            !before.is_empty() && before == after,
            "{before} is now {after}"
        );
        let bytes = self.bytes();
        let last = |what: &str| {
            let what = what.as_bytes();
            bytes.windows(what.len()).rposition(|w| w == what)
        };
        let all = bytes.escape_ascii();
        assert!(last("\x1b[?1049h").is_some(), "no other screen: {all}");
        assert!(last("\x1b[?1049l") > last("\x1b[?1049h"), "it stays: {all}");
        assert!(last("\x1b[?25h") > last("\x1b[?25l"), "no cursor: {all}");
        Done {
            line: "nameifs top".into(),
            status,
            stdout: Vec::new(),
            stderr: fs::read(self.dir.join("stderr")).expect("it was made"),
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // A test that fails leaves neither of the two behind.
        if let Ok(None) = self.child.try_wait() {
            if let Some(pid) = self.pid() {
                let _ = kill_process(pid, Signal::KILL);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// What stands on a terminal that was sent these bytes: characters, places, erasing.
fn screen(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let mut screen = vec![vec![' '; 200]; 100];
    let (mut row, mut column) = (0, 0);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => {
                let Some('[') = chars.next() else { continue };
                let mut parameters = String::new();
                let mut end = ' ';
                for c in chars.by_ref() {
                    if c.is_ascii_alphabetic() {
                        end = c;
                        break;
                    }
                    parameters.push(c);
                }
                let mut numbers = parameters
                    .split(';')
                    .map(|n| n.parse::<usize>().unwrap_or(1));
                match end {
                    'H' => {
                        row = numbers.next().unwrap_or(1) - 1;
                        column = numbers.next().unwrap_or(1) - 1;
                    }
                    'J' => screen.iter_mut().for_each(|line| line.fill(' ')),
                    _ => {}
                }
            }
            '\r' => column = 0,
            '\n' => row += 1,
            c => {
                if let Some(cell) = screen.get_mut(row).and_then(|line| line.get_mut(column)) {
                    *cell = c;
                }
                column += 1;
            }
        }
    }
    let lines = screen.into_iter().map(String::from_iter);
    lines.map(|line| line.trim_end().to_owned()).collect()
}

/// `screen` puts characters where a terminal does.
#[test]
fn screen_is_a_terminals() {
    let shown = screen(b"ab\r\nc\x1b[1;2Hx\x1b[1m\x1b[3;1Hy");
    assert_eq!(shown[..4], ["ax", "c", "y", ""]);
    assert_eq!(screen(b"ab\x1b[2J\x1b[Hc")[0], "c");
}
