//! `nameifs resolve`: one path walk, component by component (floor F7).

use crate::cli::{Outcome, ResolveArgs, failed};

/// Walks a path below a source and prints each step.
pub fn run(args: &ResolveArgs) -> Outcome {
    Err(failed(format!(
        "cannot walk {} in {}: this build has no namei yet",
        args.path.display(),
        args.source.display()
    )))
}
