//! Errors: errno is the only currency (floor F0).
//!
//! The kernel asks in system calls and the source answers in errnos, so an
//! error here *is* an errno; a source's own (EDQUOT, EACCES, ...) passes
//! through untouched. Outcomes that are not errors (a race that was lost, a
//! dentry that must be revalidated) are types of their own in the module that
//! has them and have no conversion to [`Errno`]: they cannot reach a caller
//! (invariant I9).

pub use rustix::io::Errno;

/// What every operation returns.
pub type Result<T> = core::result::Result<T, Errno>;

/// How loud an errno is in the log: absence is the daily business of a name
/// cache, refused permission is a debugging matter, the rest is news.
pub fn level(errno: Errno) -> tracing::Level {
    match errno {
        Errno::NOENT | Errno::NODATA | Errno::RANGE | Errno::NXIO => tracing::Level::TRACE,
        Errno::IO | Errno::NOMEM | Errno::NFILE | Errno::MFILE => tracing::Level::WARN,
        _ => tracing::Level::DEBUG,
    }
}
