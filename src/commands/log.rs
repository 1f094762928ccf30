//! Where the log goes (floor F7).
//!
//! RUST_LOG says what is logged. Without it: `info` with `--log`, warnings in the
//! foreground, and in a daemon without a log file nothing is installed at
//! all, so that a span costs the check of one atomic.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::sync::Mutex;

use tracing_subscriber::EnvFilter;

use super::reason;
use crate::cli::config::Config;
use crate::cli::{Outcome, failed, misuse};

/// Starts logging as the configuration says.
///
/// # Errors
/// RUST_LOG cannot be read, or the log file cannot be opened.
pub fn init(config: &Config) -> Outcome {
    if config.daemon && config.log.is_none() {
        return Ok(());
    }
    // The transport calls an interrupted request an error, and an unmount by another process.
    // What really ends it comes back from serving.
    let default = match config.log {
        Some(_) => "info,fuser=off",
        None => "warn,fuser=off",
    };
    let filter = match std::env::var_os("RUST_LOG") {
        None => EnvFilter::new(default),
        Some(text) if text.is_empty() => EnvFilter::new(default),
        Some(text) => text
            .to_str()
            .and_then(|text| EnvFilter::try_new(text).ok())
            .ok_or_else(|| {
                let text = text.to_string_lossy();
                misuse(format!(
                    "RUST_LOG '{text}' is not a filter; write for example nameifs=debug"
                ))
            })?,
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter);
    let done = match &config.log {
        Some(path) => {
            let file = File::options()
                .append(true)
                .create(true)
                .open(path)
                .map_err(|e| {
                    failed(format!(
                        "cannot open the log file {}: {}",
                        path.display(),
                        reason(&e)
                    ))
                })?;
            builder
                .with_ansi(false)
                .with_writer(Mutex::new(file))
                .try_init()
        }
        None => builder
            .with_ansi(io::stderr().is_terminal())
            .with_writer(io::stderr)
            .try_init(),
    };
    done.map_err(|e| failed(format!("cannot start the log: {e}")))?;
    // A daemon has no standard error: what ends it must be found in its log.
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!("{panic}; the mount is dead, `nameifs umount` clears it");
        default(panic);
    }));
    Ok(())
}
