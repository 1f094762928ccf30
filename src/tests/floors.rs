//! The house rules that a program can read off the text of a program: who may
//! import whom, where foreign crates and `unsafe` may be named, how long a file is.

use std::path::{Path, PathBuf};

/// Modules by floor, lowest first. Two modules of one floor do not know each other.
const FLOORS: &[&[&str]] = &[
    &["sync", "error", "clock", "ioctl"],
    &["slab"],
    &["name", "notice"],
    &["dcache", "source"],
    &["namei"],
    &["fs"],
    &["fuse"],
    &["cli"],
    &["commands"],
    &["main", "lib", "tests"],
];

/// Files that may make system calls.
const SYSTEM: &[&str] = &[
    "src/source/host",
    "src/source/creds",
    "src/source/watch",
    "src/error.rs",
    "src/ioctl.rs",
    "src/fuse",
    "src/cli",
    "src/commands",
    "src/main.rs",
];

/// Where in `src` a foreign crate or a word of the language may be named; elsewhere it
/// may not.
const CONFINED: &[(&str, &[&str])] = &[
    ("fuser", &["src/fuse"]),
    ("rustix", SYSTEM),
    ("nix", SYSTEM),
    ("dashmap", &["src/dcache"]),
    ("ratatui", &["src/commands/top"]),
    ("indicatif", &["src/commands/warm.rs"]),
    ("unsafe", &["src/slab/page.rs", "src/ioctl.rs"]),
    ("unsafe_code", &["src/slab/page.rs", "src/ioctl.rs"]),
];

const LONGEST: usize = 1_000;

/// One module may use the plain values of another on its floor (attributes, kinds, times),
/// but must not name what does the work there.
const VALUES_ONLY: &[(&str, &str, &[&str])] = &[(
    "dcache",
    "source",
    &["Source", "fake", "host", "FakeSource", "HostSource"],
)];

/// What is left of a program when comments and literals are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    /// `::`
    Path,
    Mark(char),
}

fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let mut at = 0;
    let is = |at: usize, c: char| chars.get(at) == Some(&c);
    let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
    while at < chars.len() {
        let c = chars[at];
        if c == '/' && is(at + 1, '/') {
            at += chars[at..].iter().take_while(|c| **c != '\n').count();
        } else if c == '/' && is(at + 1, '*') {
            at = skip_comment(&chars, at);
        } else if c == '"' {
            at = skip_string(&chars, at);
        } else if c == 'r'
            && (is(at + 1, '"') || (is(at + 1, '#') && (is(at + 2, '"') || is(at + 2, '#'))))
        {
            at = skip_raw_string(&chars, at + 1);
        } else if c == '\'' {
            at = skip_quote(&chars, at);
        } else if is_word(&c) {
            let word: String = chars[at..].iter().take_while(|c| is_word(c)).collect();
            at += word.chars().count();
            // A prefix of a literal (b"", c"", b'', br#""#) is none of our words.
            let prefixed = matches!(word.as_str(), "b" | "c") && (is(at, '"') || is(at, '\''));
            if matches!(word.as_str(), "br" | "cr") && (is(at, '"') || is(at, '#')) {
                at = skip_raw_string(&chars, at);
            } else if !prefixed {
                found.push(Token::Word(word));
            }
        } else if c == ':' && is(at + 1, ':') {
            found.push(Token::Path);
            at += 2;
        } else {
            if !c.is_whitespace() {
                found.push(Token::Mark(c));
            }
            at += 1;
        }
    }
    found
}

fn skip_comment(chars: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 2),
            ('*', '/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn skip_string(chars: &[char], mut at: usize) -> usize {
    at += 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

fn skip_raw_string(chars: &[char], at: usize) -> usize {
    let hashes = chars[at..].iter().take_while(|c| **c == '#').count();
    let end: Vec<char> = std::iter::once('"')
        .chain(std::iter::repeat_n('#', hashes))
        .collect();
    let body = at + hashes + 1;
    let length = chars[body..]
        .windows(end.len())
        .position(|window| window == end);
    length.map_or(chars.len(), |length| body + length + end.len())
}

/// A character, or the beginning of a lifetime.
fn skip_quote(chars: &[char], at: usize) -> usize {
    if chars.get(at + 1) == Some(&'\\') {
        let rest = chars[at + 3..].iter().position(|c| *c == '\'');
        return rest.map_or(chars.len(), |rest| at + 3 + rest + 1);
    }
    if chars.get(at + 2) == Some(&'\'') {
        at + 3
    } else {
        at + 1
    }
}

/// Modules at the top of the crate that a file names, by `crate::` or by `super::`.
fn imports(path: &str, tokens: &[Token]) -> Vec<String> {
    // How deep in the crate the text is: src/a.rs and src/a/mod.rs are 1, src/a/b.rs is 2.
    let inner = path.trim_start_matches("src/").trim_end_matches(".rs");
    let parts = inner
        .split('/')
        .filter(|part| !matches!(*part, "mod" | "lib" | "main"));
    let file_depth = parts.count();
    let mut depth = file_depth;
    // Braces of inline modules that are open, as (brace depth at which they close).
    let (mut braces, mut modules) = (0, Vec::new());
    let mut found = Vec::new();
    let word = |at: usize| match tokens.get(at) {
        Some(Token::Word(word)) => word.as_str(),
        _ => "",
    };
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            Token::Mark('{') => {
                if at >= 2 && word(at - 2) == "mod" {
                    modules.push(braces);
                    depth += 1;
                }
                braces += 1;
            }
            Token::Mark('}') => {
                braces -= 1;
                if modules.last() == Some(&braces) {
                    modules.pop();
                    depth -= 1;
                }
            }
            Token::Word(first) if first == "crate" && tokens.get(at + 1) == Some(&Token::Path) => {
                heads(tokens, at + 2, &mut found);
            }
            Token::Word(first) if first == "super" && tokens.get(at + 1) == Some(&Token::Path) => {
                let mut ups = 1;
                while word(at + 2) == "super" && tokens.get(at + 3) == Some(&Token::Path) {
                    ups += 1;
                    at += 2;
                }
                if ups >= depth {
                    heads(tokens, at + 2, &mut found);
                }
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// First words of the path or group of paths at `at`.
fn heads(tokens: &[Token], at: usize, found: &mut Vec<String>) {
    match tokens.get(at) {
        Some(Token::Word(word)) => found.push(word.clone()),
        Some(Token::Mark('*')) => found.push("*".to_owned()),
        Some(Token::Mark('{')) => {
            let mut depth = 0;
            for next in at..tokens.len() {
                match &tokens[next] {
                    Token::Mark('{') => depth += 1,
                    Token::Mark('}') => depth -= 1,
                    _ => {}
                }
                if depth == 0 {
                    return;
                }
                let begins = matches!(tokens[next], Token::Mark('{' | ','));
                if depth == 1 && begins && !matches!(tokens.get(next + 1), Some(Token::Mark(_))) {
                    heads(tokens, next + 1, found);
                }
            }
        }
        _ => {}
    }
}

fn floor_of(module: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&module))
}

/// What is wrong with the file `path` (relative, with `/`).
fn faults(path: &str, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let tokens = tokens(text);
    let lines = text.lines().count();
    if lines > LONGEST {
        wrong.push(format!("{path}: {lines} lines; split it"));
    }
    if !text.is_ascii() {
        wrong.push(format!("{path}: not ASCII"));
    }
    for (name, places) in CONFINED {
        let allowed =
            !path.starts_with("src/") || places.iter().any(|place| path.starts_with(place));
        if !allowed && names_crate(&tokens, name) {
            wrong.push(format!("{path}: `{name}` is for {places:?} only"));
        }
    }
    if let Some(inner) = path.strip_prefix("src/") {
        let own = inner
            .split('/')
            .next()
            .unwrap_or_default()
            .trim_end_matches(".rs");
        let Some(floor) = floor_of(own) else {
            wrong.push(format!(
                "{path}: `{own}` has no floor; give it one in src/tests/floors.rs"
            ));
            return wrong;
        };
        let imported = imports(path, &tokens);
        for (importer, values, workers) in VALUES_ONLY {
            let named = |worker: &&&str| tokens.contains(&Token::Word((**worker).to_owned()));
            if own == *importer && imported.iter().any(|import| import == values) {
                wrong.extend(workers.iter().filter(named).map(|worker| {
                    format!("{path}: `{own}` may use the values of `{values}`, not `{worker}`")
                }));
            }
        }
        let values = |import: &str| {
            VALUES_ONLY
                .iter()
                .any(|(importer, values, _)| (own, import) == (*importer, *values))
        };
        for import in imported {
            match floor_of(&import) {
                _ if import == own || values(&import) => {}
                Some(below) if below < floor || below == 0 => {}
                Some(_) => wrong.push(format!(
                    "{path}: `{own}` imports `{import}`, which is no floor below"
                )),
                None if own == "tests" => {}
                None => wrong.push(format!("{path}: imports `{import}`, which has no floor")),
            }
        }
    }
    wrong
}

/// Whether a crate or keyword is named: as the head of a path, or by itself for keywords.
fn names_crate(tokens: &[Token], name: &str) -> bool {
    let keyword = name.starts_with("unsafe");
    (0..tokens.len()).any(|at| {
        let head = at == 0
            || tokens[at - 1] != Token::Path
            || at == 1
            || !matches!(tokens[at - 2], Token::Word(_));
        let followed = tokens.get(at + 1) == Some(&Token::Path);
        let used = at > 0 && tokens[at - 1] == Token::Word("use".to_owned());
        tokens[at] == Token::Word(name.to_owned()) && (keyword || (head && (followed || used)))
    })
}

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn floors_hold() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    ["src", "mount-tests", "bench"]
        .iter()
        .for_each(|dir| rust_files(&top.join(dir), &mut files));
    assert!(
        files.len() > 10,
        "the sources are read from {}",
        top.display()
    );
    let mut wrong = Vec::new();
    for file in files {
        let path = file
            .strip_prefix(top)
            .unwrap()
            .to_str()
            .unwrap()
            .replace('\\', "/");
        wrong.extend(faults(&path, &std::fs::read_to_string(&file).unwrap()));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn floors_are_seen_when_they_are_broken() {
    let bad = [
        ("src/dcache/mod.rs", "use crate::fs::Fs;"),
        (
            "src/dcache/mod.rs",
            "use crate::{error::Errno, source::{Kind, Source}};",
        ),
        (
            "src/dcache/mod.rs",
            "use crate::{error::Errno, namei::{Attr, Kind}};",
        ),
        ("src/source/mod.rs", "use crate::dcache::Dcache;"),
        ("src/name.rs", "use super::namei;"),
        ("src/slab/cache.rs", "use super::super::name::QStr;"),
        (
            "src/name.rs",
            "mod tests { use super::super::dcache::Dcache; }",
        ),
        (
            "src/namei/mod.rs",
            "fn f() { let _ = \"x\"; crate::fuse::serve(); }",
        ),
        ("src/fs/mod.rs", "use fuser;"),
        ("src/fs/mod.rs", "use fuser::INodeNo;"),
        ("src/fs/mod.rs", "type E = ::nix::Error;"),
        ("src/name.rs", "type E = rustix::io::Errno;"),
        ("src/namei/mod.rs", "use dashmap::DashMap;"),
        ("src/commands/stat.rs", "use ratatui::Frame;"),
        ("src/slab/cache.rs", "unsafe { drop(x) }"),
        ("src/slab/cache.rs", "#![allow(unsafe_code)]"),
        ("src/news.rs", "//! No floor."),
        ("src/fs/mod.rs", "use crate::news::Item;"),
        ("src/fs/mod.rs", "use crate::*;"),
        ("src/cli.rs", "use crate::commands::Run;"),
    ];
    for (path, text) in bad {
        assert_eq!(
            faults(path, text).len(),
            1,
            "{path}: {text}: {:?}",
            faults(path, text)
        );
    }
    let long = "\n".repeat(LONGEST + 1);
    assert_eq!(faults("mount-tests/main.rs", &long).len(), 1);
    assert_eq!(faults("src/fs/mod.rs", "// \u{e9}").len(), 1);
}

#[test]
fn floors_let_good_files_be() {
    let good = [
        (
            "src/dcache/mod.rs",
            "use crate::{error::Errno, name::{QStr, fs}, source::{Attr, Kind}}; use super::sync;",
        ),
        (
            "src/name.rs",
            "mod tests { use super::*; use super::QStr; }",
        ),
        (
            "src/fs/mod.rs",
            "// use fuser::X;\n/* rustix::x /* unsafe */ */ let s = \"nix::\\\"unsafe\";",
        ),
        (
            "src/fs/mod.rs",
            "let s = r#\"unsafe \" fuser::\"#; let c = '\"'; let b = b\"unsafe\"; let l: &'a str;",
        ),
        (
            "src/fs/mod.rs",
            "crate::fs::x(); self::fuser(); my::fuser::x();",
        ),
        ("src/fuse.rs", "use fuser::Session; use crate::fs::Fs;"),
        ("bench/find.rs", "use fuser::Session;"),
        ("src/commands/mod.rs", "use crate::cli::Args;"),
        ("src/main.rs", "use nameifs::cli; use nix::unistd;"),
        ("src/slab/page.rs", "unsafe { x() }"),
        (
            "src/source/mod.rs",
            "pub mod host; mod fake { use super::super::error::Errno; }",
        ),
        (
            "src/error.rs",
            "use super::sync; pub use rustix::io::Errno;",
        ),
    ];
    for (path, text) in good {
        assert_eq!(faults(path, text), Vec::<String>::new(), "{text}");
    }
}
