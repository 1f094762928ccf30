//! The program: parse, do, report in one line, exit (floor F7).
//!
//! Exit codes: 0 done (a mount: unmounted cleanly), 1 failed, 2 misuse,
//! 128 + n ended by signal n after cleaning up.

mod cli;
mod commands;

use std::process::ExitCode;

use cli::Failure;

fn main() -> ExitCode {
    let outcome = match cli::parse(std::env::args_os()) {
        Ok(Ok(cli)) => commands::run(cli),
        Ok(Err(help)) => commands::print(&help),
        Err(failure) => Err(failure),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Failed(text)) => {
            commands::complain(&text);
            ExitCode::from(1)
        }
        Err(Failure::Misuse(text)) => {
            commands::complain(&text);
            ExitCode::from(2)
        }
        Err(Failure::Interrupted(signal)) => {
            ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
        }
        Err(Failure::Told(code)) => ExitCode::from(code),
    }
}
