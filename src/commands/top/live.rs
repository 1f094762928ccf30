//! The terminal of `nameifs top`: draw, wait for something to happen, draw (floor F7).
//!
//! Keys, signals, samples and the mount table each have a thread that waits for them, and
//! tell one loop. So a mirror that does not answer keeps nobody from quitting.
//!
//! Contract: the terminal is as it was before on every way out, a panic included.

use std::fs::File;
use std::io::{self, Stdout};
use std::panic;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::screen::{Sample, Screen, Sort};
use super::{gone, is_there, look, unusable};
use crate::cli::{Failure, Outcome};
use crate::commands::daemon;
use crate::commands::mountinfo::Mount;

/// How long a mirror may take to answer before the screen says that it does not.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the loop is told.
enum News {
    /// A key, a new size, or that the terminal cannot be read any more.
    Terminal(io::Result<Event>),
    /// A sample, or why there will be no more of them.
    Sampled(Result<Sample, Failure>),
    Signal(i32),
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Quit,
    Interrupt,
    Refresh,
    Sort(Sort),
}

/// Shows the mirror until told to quit.
pub fn run(mut screen: Screen, delay: Duration, mount: Mount) -> Outcome {
    // Before any thread begins, so that the one that waits for signals gets them.
    let signals = daemon::block_signals()?;
    let mut display = Display::take().map_err(|e| unusable(&e))?;
    let (tell, news) = channel();
    let (ask, asked) = channel();
    listen(&tell, signals, &mount);
    thread::spawn(move || {
        for () in asked {
            // Nobody hears it when the loop has ended, and with it the process.
            let _ = tell.send(News::Sampled(look(&mount)));
        }
    });
    watch(&mut screen, delay, &mut display, &news, &ask)
}

/// Threads that wait for what happens by itself.
fn listen(tell: &Sender<News>, signals: SigSet, mount: &Mount) {
    let keys = tell.clone();
    thread::spawn(move || {
        loop {
            let read = event::read();
            let last = read.is_err();
            if keys.send(News::Terminal(read)).is_err() || last {
                return;
            }
        }
    });
    let caught = tell.clone();
    thread::spawn(move || {
        if let Ok(signal) = signals.wait() {
            let _ = caught.send(News::Signal(signal as i32));
        }
    });
    let (unmounted, mount) = (tell.clone(), mount.clone());
    thread::spawn(move || {
        // Without the table the next look finds the mount gone, when the delay has passed.
        let Ok(table) = File::open("/proc/self/mountinfo") else {
            return;
        };
        while is_there(&mount) {
            // The kernel wakes its pollers when something is mounted or unmounted.
            match poll(&mut [PollFd::new(&table, PollFlags::PRI)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
        let _ = unmounted.send(News::Sampled(Err(gone(&mount))));
    });
}

/// Draws until told to end.
fn watch(
    screen: &mut Screen,
    delay: Duration,
    display: &mut Display,
    news: &Receiver<News>,
    ask: &Sender<()>,
) -> Outcome {
    let mut due = Instant::now() + delay;
    let mut waiting = false;
    let refresh = |waiting: &mut bool| {
        // One look at a time, however often the key is pressed.
        if !std::mem::replace(waiting, true) {
            // The thread that looks ends no sooner than this loop.
            let _ = ask.send(());
        }
    };
    loop {
        display.draw(screen).map_err(|e| unusable(&e))?;
        let wait = if waiting {
            PATIENCE
        } else {
            due.saturating_duration_since(Instant::now())
        };
        match news.recv_timeout(wait) {
            Ok(News::Terminal(Ok(Event::Key(key)))) => match wish(key) {
                Some(Wish::Quit) => return Ok(()),
                Some(Wish::Interrupt) => return Err(Failure::Interrupted(libc::SIGINT)),
                Some(Wish::Refresh) => refresh(&mut waiting),
                Some(Wish::Sort(sort)) => screen.sort = sort,
                None => {}
            },
            // A new size is found by drawing.
            Ok(News::Terminal(Ok(_))) => {}
            Ok(News::Terminal(Err(e))) => return Err(unusable(&e)),
            Ok(News::Signal(signal)) => return Err(Failure::Interrupted(signal)),
            Ok(News::Sampled(sample)) => {
                screen.update(sample?);
                waiting = false;
                due = Instant::now() + delay;
            }
            Err(RecvTimeoutError::Timeout) if waiting => screen.late = true,
            Err(RecvTimeoutError::Timeout) => refresh(&mut waiting),
            // Not while the thread that looks is there.
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// slabtop's keys; without signals from the terminal, Ctrl-C is one too.
fn wish(key: KeyEvent) -> Option<Wish> {
    let plain = !key
        .modifiers
        .intersects(KeyModifiers::CONTROL | KeyModifiers::ALT);
    match key.code {
        KeyCode::Char('c') if key.modifiers == KeyModifiers::CONTROL => Some(Wish::Interrupt),
        KeyCode::Char('q' | 'Q') if plain => Some(Wish::Quit),
        KeyCode::Char(' ') if plain => Some(Wish::Refresh),
        KeyCode::Char(letter) if plain => Sort::by_letter(letter).map(Wish::Sort),
        _ => None,
    }
}

/// The terminal while it is ours; dropping it gives it back.
struct Display(Terminal<CrosstermBackend<Stdout>>);

impl Display {
    fn take() -> io::Result<Self> {
        // A panic ends the process at once and drops nothing.
        let told = panic::take_hook();
        panic::set_hook(Box::new(move |what| {
            give_back();
            told(what);
        }));
        let display = Self(Terminal::new(CrosstermBackend::new(io::stdout()))?);
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        Ok(display)
    }

    fn draw(&mut self, screen: &Screen) -> io::Result<()> {
        self.0.draw(|frame| screen.draw(frame)).map(drop)
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        give_back();
    }
}

/// Each step by itself: one that fails must not keep the others from being done.
fn give_back() {
    let _ = disable_raw_mode();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        let plain = KeyModifiers::NONE;
        for (letter, modifiers, wanted) in [
            ('q', plain, Some(Wish::Quit)),
            ('Q', KeyModifiers::SHIFT, Some(Wish::Quit)),
            (' ', plain, Some(Wish::Refresh)),
            ('n', plain, Some(Wish::Sort(Sort::Name))),
            ('C', KeyModifiers::SHIFT, Some(Wish::Sort(Sort::CacheSize))),
            ('c', KeyModifiers::CONTROL, Some(Wish::Interrupt)),
            ('q', KeyModifiers::CONTROL, None),
            ('s', KeyModifiers::ALT, None),
            ('x', plain, None),
        ] {
            let key = KeyEvent::new(KeyCode::Char(letter), modifiers);
            assert_eq!(wish(key), wanted, "{key:?}");
        }
        assert_eq!(wish(KeyEvent::new(KeyCode::Up, plain)), None);
    }
}
