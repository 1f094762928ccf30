//! `nameifs man`: the manual page, from the definitions that parse the command line (floor F7).

use std::io::{self, Write};

use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::{print, reason};
use crate::cli::{Cli, Outcome, failed};

/// Prints the page, to be saved as `nameifs.8`.
pub fn run() -> Outcome {
    let page =
        page().map_err(|e| failed(format!("cannot write the manual page: {}", reason(&e))))?;
    print(&page)
}

/// One page for the program and all its commands.
fn page() -> io::Result<String> {
    let mut out = Vec::new();
    let command = Cli::command();
    let man = Man::new(command.clone()).section("8").title("NAMEIFS");
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let name = sub.get_name();
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        let shown = sub
            .clone()
            .bin_name(format!("nameifs {name}"))
            .disable_help_flag(true);
        let mut heading = Roff::new();
        heading.control("SH", [name.to_uppercase().as_str()]);
        heading.text([roman(format!("{about}."))]);
        heading.to_writer(&mut out)?;
        let mut body = Vec::new();
        let man = Man::new(shown);
        man.render_synopsis_section(&mut body)?;
        man.render_options_section(&mut body)?;
        // The sections of a command are subsections of its own.
        let body = String::from_utf8_lossy(&body).replace("\n.SH ", "\n.SS ");
        out.write_all(body.as_bytes())?;
    }
    let mut closing = Roff::new();
    for (title, text) in CLOSING {
        closing.control("SH", [title]);
        closing.text([roman(text)]);
    }
    closing.to_writer(&mut out)?;
    Ok(one_preamble(&String::from_utf8_lossy(&out)))
}

/// The page with the definition of the apostrophe at its start only; every section brings it.
fn one_preamble(page: &str) -> String {
    let mut lines: Vec<&str> = page.lines().take(2).collect();
    let defines = |line: &&str| line.starts_with(".ie ") || line.starts_with(".el ");
    lines.extend(page.lines().skip(2).filter(|line| !defines(line)));
    lines.join("\n") + "\n"
}

/// What no option describes.
const CLOSING: [(&str, &str); 3] = [
    (
        "EXIT STATUS",
        "0: done; a mount in the foreground was unmounted cleanly. 1: failed. 2: misuse. \
         128 + n: demo or warm was ended by signal n and has cleaned up.",
    ),
    (
        "FILES",
        "In the root of every mirror, openable and not listed: .slabinfo (the caches, as \
         /proc/slabinfo), .nameifs/stats (JSON), .nameifs/dentry-state (as \
         /proc/sys/fs/dentry-state), .nameifs/drop_caches (write 1).",
    ),
    (
        "SEE ALSO",
        "mount(8), fusermount3(1), slabinfo(5), slabtop(1)",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_every_option_and_command() {
        let page = page().unwrap().replace("\\-", "-");
        for sub in Cli::command()
            .get_subcommands()
            .filter(|s| !s.is_hide_set())
        {
            assert!(page.contains(&format!(".SH {}", sub.get_name().to_uppercase())));
            for arg in sub.get_arguments().filter(|a| !a.is_hide_set()) {
                if let Some(long) = arg.get_long().filter(|l| *l != "help") {
                    assert!(page.contains(&format!("--{long}")), "--{long}");
                }
            }
        }
        assert!(!page.contains("daemon-child"));
        assert!(page.is_ascii());
    }
}
