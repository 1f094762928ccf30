//! Tests of both stages: from `argv` to a checked configuration, or to one line.

use super::*;

fn argv(line: &str) -> Vec<OsString> {
    std::iter::once("nameifs")
        .chain(line.split_whitespace())
        .map(OsString::from)
        .collect()
}

fn misused(line: &str) -> String {
    match parse(argv(line)) {
        Err(Failure::Misuse(text)) => text,
        other => panic!("{line:?} gave {other:?}"),
    }
}

fn mount_args(line: &str) -> MountArgs {
    match parse(argv(line)) {
        Ok(Ok(Cli {
            command: Command::Mount(args),
        })) => *args,
        other => panic!("{line:?} gave {other:?}"),
    }
}

#[test]
fn definitions_hold_together() {
    Cli::command().debug_assert();
}

#[test]
fn misuse_is_one_line_that_names_the_culprit() {
    for (line, part) in [
        ("", "nothing to do"),
        ("mount", "SOURCE and MOUNTPOINT are missing"),
        ("mount /a", "MOUNTPOINT is missing"),
        ("mount /a /b /c", "'/c'"),
        ("mount --coherense=ttl /a /b", "did you mean --coherence"),
        ("mount --no-such /a /b", "unknown option '--no-such'"),
        ("mount -q /a /b", "unknown option '-q'"),
        ("mount /a /b --ttl", "--ttl"),
        ("mount /a /b -o", "-o"),
        ("mount --foreground=yes /a /b", "--foreground"),
        ("mount --tied-to 1 /a /b", "--daemon-child"),
        ("umount", "MOUNTPOINT is missing"),
        ("umount /a /b", "'/b'"),
        ("stat --jason /a", "did you mean --json"),
        ("top", "MOUNTPOINT is missing"),
        ("top --delay", "--delay"),
        ("top --onec /a", "did you mean --once"),
        ("resolve /a", "PATH is missing"),
        ("demo /a /b", "'/b'"),
        ("/a", "MOUNTPOINT is missing"),
        ("frobnicate", "MOUNTPOINT is missing"),
        ("--no-such", "unknown option '--no-such'"),
    ] {
        let text = misused(line);
        assert!(text.contains(part), "{line:?} gave {text:?}");
        assert!(!text.contains('\n'), "{line:?} gave {text:?}");
        assert!(
            text.contains("; "),
            "{line:?} says not what to do: {text:?}"
        );
    }
}

#[test]
fn help_and_version_are_not_failures() {
    for line in [
        "--help",
        "-h",
        "--version",
        "-V",
        "mount --help",
        "stat -h",
        "top --help",
        "demo --help",
    ] {
        match parse(argv(line)) {
            Ok(Err(text)) => assert!(text.contains("nameifs"), "{line:?} gave {text:?}"),
            other => panic!("{line:?} gave {other:?}"),
        }
    }
}

#[test]
fn without_a_command_it_mounts() {
    let args = mount_args("/src /mnt -o rw,ttl=5s");
    assert!(args.from_mount);
    assert_eq!(args.source, PathBuf::from("/src"));
    assert_eq!(args.mountpoint, PathBuf::from("/mnt"));
    assert_eq!(args.options, ["rw,ttl=5s"]);
    assert!(mount_args("-o ro /src /mnt").from_mount);
    assert!(mount_args("./stat /mnt").from_mount);
    assert!(!mount_args("mount /src /mnt").from_mount);
}

#[test]
fn the_last_of_a_repeated_option_counts() {
    let args = mount_args("mount --ttl 1s --ttl 2s -o ro -o nosuid -f -f /a /b");
    assert_eq!(args.ttl, Some("2s".into()));
    assert_eq!(args.options, ["ro", "nosuid"]);
    assert!(args.foreground);
}

#[test]
fn names_are_bytes() {
    use std::os::unix::ffi::OsStringExt;
    let mut argv = argv("mount");
    argv.push(OsString::from_vec(b"/\xff".to_vec()));
    argv.push(OsString::from_vec(b"/\xfe".to_vec()));
    let Ok(Ok(Cli {
        command: Command::Mount(args),
    })) = parse(argv)
    else {
        panic!("refused")
    };
    assert_eq!(args.source.into_os_string().into_vec(), b"/\xff");
}

/// Nobody finds an option that README does not name.
#[test]
fn readme_names_every_option() {
    let readme = include_str!("../../README.md");
    for command in Cli::command()
        .get_subcommands()
        .filter(|c| !c.is_hide_set())
    {
        assert!(readme.contains(&format!("nameifs {}", command.get_name())));
        for long in command
            .get_arguments()
            .filter(|arg| !arg.is_hide_set())
            .filter_map(|arg| arg.get_long())
        {
            assert!(readme.contains(&format!("--{long}")), "--{long}");
        }
    }
}
