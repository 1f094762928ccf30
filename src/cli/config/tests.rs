//! Tables of what goes together, what does not, and what it means.

use super::*;
use crate::cli::{Cli, Command, parse};

const USER: Caller = Caller {
    root: false,
    cores: 1,
};
const ROOT: Caller = Caller {
    root: true,
    cores: 8,
};

fn check(line: &str, caller: Caller) -> Result<Config, Failure> {
    let argv = std::iter::once("nameifs")
        .chain(line.split_whitespace())
        .map(OsString::from);
    match parse(argv) {
        Ok(Ok(Cli {
            command: Command::Mount(args),
        })) => Config::check(*args, caller),
        other => panic!("{line:?} gave {other:?}"),
    }
}

fn config(line: &str) -> Config {
    check(&format!("mount /src /mnt {line}"), USER).unwrap()
}

fn misused(line: &str) -> String {
    match check(&format!("mount /src /mnt {line}"), USER) {
        Err(Failure::Misuse(text)) => text,
        other => panic!("{line:?} gave {other:?}"),
    }
}

#[test]
fn defaults() {
    let c = config("");
    assert_eq!(c.fs.coherence, Coherence::Auto);
    assert_eq!(c.fs.max_watches, 1 << 20);
    for time in [c.fs.ttl, c.fs.negative_ttl, c.fs.attr_ttl] {
        assert_eq!(time, Duration::from_secs(1));
    }
    assert_eq!(c.fs.cache_size, 512 << 20);
    assert_eq!(c.fs.slabinfo, SlabinfoMode::Hidden);
    assert_eq!(c.fs.readdirplus, Readdirplus::Auto);
    assert!(c.fs.passthrough && c.fs.xattr);
    assert!(!c.fs.read_only && !c.mount.read_only);
    assert!(c.mount.nosuid && c.mount.nodev && !c.mount.noexec && !c.mount.noatime);
    assert!(!c.mount.allow_other && !c.mount.allow_root && !c.mount.auto_unmount);
    assert!(!c.foreground && !c.nonempty && c.log.is_none());
    assert_eq!(c.mount.threads, 2);
    assert_eq!(check("mount /s /m", ROOT).unwrap().mount.threads, 8);
}

#[test]
fn a_list_says_the_same_as_the_long_options() {
    let long = "-f --coherence strict --ttl 2s --negative-ttl 3s --attr-ttl 4s --cache-size 1M \
                --threads 3 --slabinfo listed --passthrough off --readdirplus never --read-only \
                --no-xattr --log /l";
    let list = "-o foreground,coherence=strict,ttl=2s,negative-ttl=3s,attr-ttl=4s,cache-size=1M,\
                threads=3,slabinfo=listed,passthrough=off,readdirplus=never,read-only,no-xattr,\
                log=/l";
    let c = config(long);
    assert_eq!(c.fs.negative_ttl, Duration::from_secs(3));
    assert_eq!(c.fs.attr_ttl, Duration::from_secs(4));
    assert_eq!((c.fs.cache_size, c.mount.threads), (1 << 20, 3));
    assert!(c.fs.read_only && c.mount.read_only && !c.fs.xattr && !c.fs.passthrough);
    assert_eq!(c.log, Some("/l".into()));
    assert_eq!(format!("{c:?}"), format!("{:?}", config(list)));
    let underscores = list
        .replace("negative-ttl", "negative_ttl")
        .replace("no-xattr", "no_xattr");
    assert_eq!(format!("{c:?}"), format!("{:?}", config(&underscores)));
}

/// Every long option with a meaning outside the process has its word in `-o`.
#[test]
fn no_long_option_lacks_its_word() {
    use clap::CommandFactory;
    let command = Cli::command();
    let mount = command.find_subcommand("mount").unwrap();
    for arg in mount.get_arguments().filter(|a| !a.is_hide_set()) {
        let Some(long) = arg.get_long().filter(|l| *l != "help") else {
            continue;
        };
        let word = list::Word {
            name: long.into(),
            value: arg.get_action().takes_values().then(|| b"x".to_vec()),
        };
        let mut listed = Listed::read(&[]).unwrap();
        assert!(listed.word(&word).is_ok(), "--{long}");
    }
}

#[test]
fn later_words_and_long_options_win() {
    assert_eq!(config("-o ttl=1s,ttl=2s").fs.ttl, Duration::from_secs(2));
    assert_eq!(config("-o ttl=1s -o ttl=3s").fs.ttl, Duration::from_secs(3));
    assert_eq!(config("--ttl 4s -o ttl=2s").fs.ttl, Duration::from_secs(4));
    assert!(config("-o rw,ro").fs.read_only);
    assert!(!config("-o ro,rw").fs.read_only);
    assert!(config("--read-only -o rw").fs.read_only);
    let c = config("-o dev,suid,noexec,noatime");
    assert!(!c.mount.nodev && !c.mount.nosuid && c.mount.noexec && c.mount.noatime);
    assert!(!config("-o noexec,exec").mount.noexec);
}

#[test]
fn times_follow_ttl() {
    let c = config("--ttl 5s");
    assert_eq!((c.fs.negative_ttl, c.fs.attr_ttl), (c.fs.ttl, c.fs.ttl));
    let c = config("--ttl 5s --negative-ttl 0");
    assert_eq!(c.fs.negative_ttl, Duration::ZERO);
    assert_eq!(c.fs.attr_ttl, Duration::from_secs(5));
}

#[test]
fn frozen_is_read_only() {
    let c = config("-o coherence=frozen,ttl=5s,ro");
    assert!(c.fs.coherence == Coherence::Frozen && c.fs.read_only && c.mount.read_only);
    // The kernel lets the write to drop_caches through; the rest is refused below it.
    let c = config("--coherence=frozen");
    assert!(c.fs.read_only && !c.mount.read_only);
    assert!(
        config("--coherence=frozen --read-only -o rw")
            .mount
            .read_only
    );
    assert!(misused("--coherence=frozen -o rw").contains("frozen"));
    assert!(misused("-o rw,coherence=frozen").contains("frozen"));
    // mount(8) adds rw by itself.
    let c = check("/src /mnt -o rw,coherence=frozen", USER).unwrap();
    assert!(c.fs.read_only);
}

#[test]
fn remounting() {
    assert!(config("-o remount,ro").remount);
    assert!(!config("-o ro").remount);
}

#[test]
fn who_may_enter() {
    let allowed = |line: &str, caller| {
        let c = check(&format!("mount /src /mnt {line}"), caller).unwrap();
        (c.mount.allow_other, c.mount.allow_root)
    };
    assert_eq!(allowed("", USER), (false, false));
    assert_eq!(allowed("", ROOT), (true, false));
    assert_eq!(allowed("-o allow_other", USER), (true, false));
    assert_eq!(allowed("-o allow_root", USER), (false, true));
    assert_eq!(allowed("-o allow_root", ROOT), (false, true));
    assert!(misused("-o allow_root,allow_other").contains("exclude"));
    assert!(misused("-o auto_unmount").contains("allow_other"));
    assert!(config("-o auto_unmount,allow_root").mount.auto_unmount);
    let c = check("mount /src /mnt -o auto_unmount", ROOT).unwrap();
    assert!(c.mount.auto_unmount && c.mount.allow_other);
}

#[test]
fn words_without_effect() {
    let plain = format!("{:?}", config(""));
    for word in NO_EFFECT
        .iter()
        .chain(&["x-systemd.automount", "X-mount.mkdir", "user=bob"])
    {
        assert_eq!(
            format!("{:?}", config(&format!("-o {word}"))),
            plain,
            "{word}"
        );
    }
    let shown = "-o user_id=0,group_id=0,max_read=131072";
    assert_eq!(format!("{:?}", config(shown)), plain);
    let fstab =
        "-o defaults,default_permissions,noauto,user,nofail,_netdev,relatime,subtype=nameifs";
    assert_eq!(format!("{:?}", config(fstab)), plain);
}

#[test]
fn the_shown_source() {
    let source = Path::new("/abs/src");
    for in_list in [false, true] {
        assert_eq!(config("").shown_source(source, in_list), "/abs/src");
    }
    let c = config(r"-o fsname=a\,b\\c");
    assert_eq!(c.shown_source(source, false), r"a,b\c");
    assert_eq!(c.shown_source(source, true), r"a\,b\\c");
}

#[test]
fn misuse() {
    for (line, parts) in [
        (
            "--coherence never",
            &["--coherence 'never'", "auto, watch, ttl, frozen, strict"][..],
        ),
        (
            "-o coherence=never",
            &["-o coherence 'never'", "auto, watch, ttl, frozen, strict"],
        ),
        ("--coherence TTL", &["'TTL'"]),
        ("--ttl 1x", &["--ttl '1x'", "500ms"]),
        ("--ttl=-1", &["--ttl '-1'"]),
        ("-o ttl=", &["-o ttl ''"]),
        ("-o ttl", &["-o ttl has no value"]),
        ("--negative-ttl soon", &["--negative-ttl 'soon'"]),
        ("--attr-ttl 1h1", &["--attr-ttl '1h1'"]),
        ("--cache-size 12Q", &["--cache-size '12Q'", "64M"]),
        ("--cache-size 0", &["--cache-size '0'", "64K is the least"]),
        ("--cache-size 99999999T", &["too large"]),
        ("--threads 0", &["--threads '0'", "1 to 256"]),
        ("--threads 257", &["--threads '257'"]),
        (
            "--slabinfo maybe",
            &["--slabinfo 'maybe'", "hidden, listed, off"],
        ),
        ("--passthrough on", &["--passthrough 'on'", "auto, off"]),
        (
            "--readdirplus often",
            &["--readdirplus 'often'", "auto, always, never"],
        ),
        ("-o nosuch", &["unknown mount option 'nosuch'", "--help"]),
        ("-o NOSUID", &["unknown mount option 'NOSUID'"]),
        ("-o source=/x", &["unknown mount option 'source'"]),
        ("-o daemon-child", &["unknown mount option 'daemon-child'"]),
        ("-o ro=1", &["-o ro takes no value"]),
        ("-o nodev=", &["-o nodev takes no value"]),
        ("-o log", &["-o log has no value"]),
        ("-o log=", &["empty file name"]),
        (r"-o fsname=a\", &["backslash"]),
        (r#"-o fsname="a"#, &["double quote"]),
    ] {
        let text = misused(line);
        for part in parts {
            assert!(text.contains(part), "{line:?} gave {text:?}");
        }
    }
}

#[test]
fn empty_paths() {
    let args = MountArgs {
        mountpoint: "/m".into(),
        ..MountArgs::default()
    };
    assert!(matches!(Config::check(args, USER), Err(Failure::Misuse(_))));
    let args = MountArgs {
        source: "/s".into(),
        ..MountArgs::default()
    };
    assert!(matches!(Config::check(args, USER), Err(Failure::Misuse(_))));
}
