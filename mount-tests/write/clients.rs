//! Programs as people use them, at work in the mount: the same outcome as in a plain
//! directory, and nothing lost.

use std::path::Path;
use std::time::Duration;

use super::{Pair, ROUTES, route, script_in};
use crate::harness::Setup;
use crate::need;
use crate::run::{command, run_within};

/// What a client gets.
const LIMIT: Duration = Duration::from_secs(200);

/// Runs a script in a plain directory, then on a mount by each way for data and in
/// `strict`; it must succeed and say the same.
#[track_caller]
fn same(script: &str) {
    for setup in [route("auto"), route("off"), Setup::mode("strict")] {
        let pair = Pair::new(setup.clone());
        let run = |dir: &Path| {
            let mut cmd = script_in(dir, &format!("set -e\n{script}"));
            cmd.env("CARGO", env!("CARGO"));
            run_within(&mut cmd, LIMIT)
        };
        let plain = run(&pair.plain);
        assert!(
            plain.status.success(),
            "plain: {}{}",
            plain.out(),
            plain.err()
        );
        assert!(!plain.stdout.is_empty(), "it shows nothing");
        let mount = run(pair.mounted.path());
        assert!(
            mount.status.success(),
            "{setup:?}: {}\n{}{}",
            mount.status,
            mount.out(),
            mount.err()
        );
        assert_eq!(plain.out(), mount.out(), "{setup:?}");
        // And what it left is on the source.
        let left = |dir: &Path| {
            let list = "find . -printf '%P %y %m %n %l\n' | sort";
            run_within(&mut script_in(dir, list), LIMIT).clean().out()
        };
        assert_eq!(left(pair.mounted.path()), left(pair.mounted.source()));
        pair.end();
    }
}

const GIT: &str = r#"
export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=e GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=e
export GIT_AUTHOR_DATE='2001-01-01T00:00:00Z' GIT_COMMITTER_DATE='2001-01-01T00:00:00Z'
printf '[init]\n defaultBranch = main\n[safe]\n directory = *\n[gc]\n auto = 0\n' > .gitconfig
"#;

/// git: what is committed is what is checked out; a status right after finds nothing
/// changed; gc, worktrees, branches, renames, stashes and clones leave a sound
/// repository with the same commits.
#[test]
fn clients_git() {
    need!(Program("git"));
    same(&format!(
        "{GIT}{}",
        r#"
        git init -q one; cd one
        for d in 1 2 3 4 5; do mkdir -p dir-$d/deep; for f in $(seq 30); do echo "$d $f" > dir-$d/deep/f-$f; done; done
        ln -s dir-1 link; printf '#!/bin/sh\necho run\n' > run; chmod +x run; ./run
        git add -A; git commit -qm first; git rev-parse HEAD
        git status --porcelain; git diff-files --name-only
        git checkout -q -b other; git mv dir-1 moved; sed -i s/1/2/ moved/deep/f-1; git rm -rq dir-2
        git commit -qam second; git rev-parse HEAD; git status --porcelain
        for i in 1 2 3; do git checkout -q main; git status --porcelain; git checkout -q other; git status --porcelain; done
        echo dirty >> run; git stash -q; ./run; git stash pop -q; git status --porcelain; git checkout -q run
        git worktree add -q ../tree main; ls ../tree | wc -l; git -C ../tree status --porcelain
        git gc -q --prune=now; git fsck --strict 2>&1 | grep -v '^Checking' || true
        ls .git/objects/pack | grep -c pack$
        cd ..; git clone -q one two; git -C two log --format=%H; git -C two status --porcelain
        git clone -q --local --no-hardlinks one three; rm -rf three; ls
        git -C one worktree remove ../tree; git -C one merge -q --no-edit main 2>&1 | head -3
        "#
    ));
}

/// tar and rsync: owners, modes, times, links, holes, extended attributes and access
/// lists survive going into the mount and coming out of it.
#[test]
fn clients_archives() {
    need!(
        Root,
        Program("rsync"),
        Program("tar"),
        Program("setfacl"),
        Program("setfattr")
    );
    same(
        r#"
        mkdir from; cd from
        mkdir -p d/e/f; echo text > d/file; ln d/file d/e/hard; ln -s ../file d/e/soft; ln -s nowhere dangling
        mkfifo pipe; mknod null c 1 3; mknod block b 7 99; : > empty; head -c 300000 /dev/zero | tr '\0' x > big
        truncate -s 5M holes; printf end >> holes; chmod 4711 empty; chown 12:34 d/file; chmod 1777 d/e
        setfacl -m u:5:rw,d:u:6:rx d/e; setfattr -n user.a -v b d/file; setfattr -n trusted.t -v 1 d
        chown -h 7:8 dangling; touch -h -d '1975-05-05 05:05:05.123456789' dangling d/file
        touch -d '2033-03-03 03:03:03' d/e/f d/e pipe; touch -d '1955-01-01' big
        # rsync takes times of the same second for the same on what is no file.
        touch -h -d '1999-09-09 09:09:09.9' d/e/soft null block
        cd ..; touch -d @1000000000 from/d from
        look() { (cd $1; find . -printf '%P %y %m %U %G %n %s %l %T@\n' | sort
            find . ! -type l -print0 | sort -z | xargs -0 getfacl -pn
            find . -print0 | sort -z | xargs -0 getfattr -hdm '^(user|trusted)' -- ); }
        look from > want
        # Directories' own sizes may differ, and who refers to whom is in the counts.
        rsync -aHAX --numeric-ids from/ rsynced/; look rsynced | diff want - && echo rsync
        rsync -aHAX --numeric-ids --checksum --itemize-changes from/ rsynced/
        echo changed >> from/d/file; rm from/empty; touch -d @1100000000 from/d from; rsync -aHAX --numeric-ids --delete --inplace from/ rsynced/
        look from > want; look rsynced | diff want - && echo again
        tar --acls --xattrs --xattrs-include='*' --numeric-owner --sparse -cf all.tar from
        mkdir out; tar --acls --xattrs --xattrs-include='*' --numeric-owner -xpf all.tar -C out
        # tar keeps no nanoseconds in this format beyond what pax has.
        (cd out; find . -printf '%P %y %m %U %G %n %s %l\n' | sort) | sed 's,from/,,' | wc -l
        look out/from | sed 's/\.[0-9]*$//' > got; sed 's/\.[0-9]*$//' want | diff - got && echo tar
        cp -a from copied; look copied | diff want - && echo cp
        [ $(du -k copied/holes | cut -f1) -lt 1000 ] && echo sparse
        mv copied moved; look moved | diff want - && echo mv
        tar --compare --numeric-owner -f all.tar && echo compared
        rm -rf from out rsynced moved; ls -A
        "#,
    );
}

/// SQLite with a write-ahead log and with a rollback journal: four processes add to one
/// table at a time, no row is lost, and the file is sound.
#[test]
fn clients_sqlite() {
    need!(Program("sqlite3"));
    same(
        r#"
        for mode in wal delete truncate persist; do
            db=$mode.db
            sqlite3 $db "pragma journal_mode=$mode; create table t(who int, n int, text); create index i on t(n);"
            pids=
            for who in 1 2 3 4; do
                (for n in $(seq 15); do
                    echo ".timeout 60000"
                    echo "begin immediate; insert into t values($who, $n, hex(randomblob(300))); commit;"
                    echo "update t set text = text || 'x' where who = $who and n = $n;"
                done | sqlite3 $db) & pids="$pids $!"
            done
            for p in $pids; do wait $p; done
            sqlite3 $db "pragma integrity_check; select who, count(*), sum(n), min(length(text)) from t group by who"
            sqlite3 $db "pragma wal_checkpoint(truncate); vacuum; select count(*) from t"
            sqlite3 "file:$db?mode=ro" "select count(*) from t where text like '%x'"
        done
        ls
        "#,
    );
}

/// A program that works on a database in the source, and one that works on it through
/// the mount, keep out of each other's way.
#[test]
fn clients_sqlite_on_both_sides() {
    need!(Program("sqlite3"));
    for passthrough in ROUTES {
        // Data is read back after others wrote it on the source: in `strict` at once.
        let setup = Setup::mode("strict").arg(format!("--passthrough={passthrough}"));
        let pair = Pair::new(setup);
        let script = r#"
            sqlite3 db "create table t(who int, n int)"
            work() { cd "$1"; for n in $(seq 25); do
                sqlite3 -cmd '.timeout 60000' db "insert into t values($2, $n)" || exit 1; done; }
            (work "$BELOW" 1) & a=$!; (work . 2) & b=$!; (work "$BELOW" 3) & c=$!; (work . 4) & d=$!
            wait $a && wait $b && wait $c && wait $d; echo $?
            sqlite3 db "pragma integrity_check; select who, count(*), sum(n) from t group by who"
            sqlite3 "$BELOW/db" "pragma integrity_check; select count(*) from t"
        "#;
        let done = pair.same_ok(script);
        assert!(done.out().starts_with("0\nok\n"), "{}", done.out());
        pair.end();
    }
}

/// cargo builds, runs and tests a crate in the mount, finds nothing to do the second
/// time, and builds again after a change.
#[test]
fn clients_cargo_build() {
    need!(Program("cc"));
    let home = std::env::var_os("CARGO_HOME").or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(Path::new(&home).join(".cargo").into_os_string())
    });
    let rustup = std::env::var_os("RUSTUP_HOME").or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(Path::new(&home).join(".rustup").into_os_string())
    });
    let script = r#"
        mkdir -p crate/src; cd crate
        printf '[package]\nname = "tiny"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n' > Cargo.toml
        printf 'pub mod part;\npub fn two() -> u32 { part::one() + 1 }\n#[test]\nfn t() { assert_eq!(two(), 2); }\n' > src/lib.rs
        printf 'pub fn one() -> u32 { 1 }\n' > src/part.rs
        printf 'fn main() { println!("{}", tiny::two()); }\n' > src/main.rs
        cargo() { "$CARGO" --offline --quiet "$@"; }
        cargo run; cargo run
        "$CARGO" build --offline -v 2>&1 | grep -c Fresh
        printf 'pub fn one() -> u32 { 41 }\n' > src/part.rs; cargo run
        sed -i 's/, 2)/, 42)/' src/lib.rs; cargo test 2>/dev/null | grep -c '1 passed'
        cargo clean; ls
    "#;
    for setup in [route("auto"), route("off")] {
        let pair = Pair::new(setup);
        let run = |dir: &Path| {
            let mut cmd = script_in(dir, &format!("set -e\n{script}"));
            cmd.env("CARGO", env!("CARGO"))
                .env_remove("CARGO_TARGET_DIR");
            cmd.envs(home.iter().map(|h| ("CARGO_HOME", h)));
            cmd.envs(rustup.iter().map(|h| ("RUSTUP_HOME", h)));
            let done = run_within(&mut cmd, LIMIT);
            assert!(done.status.success(), "{}{}", done.out(), done.err());
            done.out()
        };
        let plain = run(&pair.plain);
        assert!(plain.starts_with("2\n2\n1\n42\n"), "{plain}");
        assert_eq!(plain, run(pair.mounted.path()));
        pair.end();
    }
}

/// A program and a shared library replaced while they run: who runs goes on with the
/// old, who starts gets the new; writing into what runs is ETXTBSY as it is elsewhere.
#[test]
fn clients_replaced_while_running() {
    need!(Program("cc"));
    same(
        r#"
        printf 'int part(void){return 1;}\n' > part.c; cc -shared -fPIC -Wl,-soname,libpart.so -o libpart.so part.c
        printf '#include <stdio.h>\n#include <unistd.h>\nint part(void);\nint main(void){char c;do{printf("old %%d\\n",part());fflush(stdout);}while(read(0,&c,1)==1);return 0;}\n' > p.c
        cc -o prog p.c -L. -lpart -Wl,-rpath,"$PWD"
        sed s/old/new/ p.c > q.c; sed s/1/2/ part.c > part2.c
        cc -shared -fPIC -Wl,-soname,libpart.so -o libpart.new part2.c; cc -o prog.new q.c -L. -lpart -Wl,-rpath,"$PWD"
        coproc RUN { ./prog; }
        read -u ${RUN[0]} line; echo "$line"
        # Busy: neither is there to be written, truncated, or opened to write.
        (echo x >> prog) 2>/dev/null && echo appended || echo "not appended"
        (echo x > prog) 2>/dev/null && echo written || echo "not written"
        mv prog.new prog; mv libpart.new libpart.so
        echo >&${RUN[1]}; read -u ${RUN[0]} line; echo "$line"
        ./prog < /dev/null
        rm prog libpart.so; echo >&${RUN[1]}; read -u ${RUN[0]} line; echo "$line"
        exec {RUN[1]}>&-; wait $RUN_PID; echo $?
        # Ran, ended, is written again and runs again.
        for i in 1 2 3 4 5; do cp q.c $i.c; cc -c -o o.o part.c; printf '#!/bin/sh\necho %s\n' $i > s; chmod +x s; ./s; done
        cc -shared -fPIC -Wl,-soname,libpart.so -o libpart.so part.c
        cc -o prog p.c -L. -lpart -Wl,-rpath,"$PWD"; cp prog prog2; ./prog2 < /dev/null; cat prog > prog2; ./prog2 < /dev/null
        ls | wc -l
        "#,
    );
}

/// A program written, closed and run at once, by several at a time, is never busy more
/// often than in a plain directory.
#[test]
fn clients_run_just_written() {
    need!(Program("python3"));
    let pair = Pair::new(Setup::mode("ttl"));
    // posix_spawn from one thread, so that no other child can hold the descriptor.
    let script = r#"
import os, subprocess, sys, errno
busy = 0
for i in range(60):
    name = "./p-%s-%d" % (sys.argv[1], i % 3)
    if os.path.exists(name): os.unlink(name)
    fd = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o755)
    with open("/bin/true", "rb") as true: os.write(fd, true.read())
    os.close(fd)
    try: subprocess.run([name], check=True, close_fds=False)
    except OSError as e:
        if e.errno != errno.ETXTBSY: raise
        busy += 1
print(busy)
"#;
    let run = |dir: &Path| {
        let start = |i: usize| {
            let mut cmd = command(["/usr/bin/python3", "-c", script]);
            cmd.arg(i.to_string()).current_dir(dir);
            std::thread::spawn(move || run_within(&mut cmd, LIMIT).clean().out())
        };
        let threads: Vec<_> = (0..4).map(start).collect();
        let join = |t: std::thread::JoinHandle<String>| t.join().expect("no panic");
        threads.into_iter().map(join).collect::<Vec<_>>()
    };
    assert_eq!(run(&pair.plain), vec!["0\n"; 4]);
    assert_eq!(run(pair.mounted.path()), vec!["0\n"; 4]);
    pair.end();
}

/// Four writers and four readers in one directory: every file that a reader opens is
/// whole, every file that a writer has finished is there, and in the end each has the
/// bytes that its name promises.
#[test]
fn clients_writers_and_readers() {
    need!(Program("python3"));
    let script = r#"
import hashlib, os, random, sys, time
role, me, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
random.seed(me)
end = time.monotonic() + seconds
count = 0
if role == "write":
    mine = []
    while time.monotonic() < end:
        text = os.urandom(random.randrange(20000))
        name = "%d-%d-%s" % (me, count, hashlib.sha1(text).hexdigest())
        with open(".tmp-%d" % me, "wb") as f:
            for at in range(0, len(text), 4096): f.write(text[at:at + 4096])
        if count % 3: os.rename(".tmp-%d" % me, name)
        else: os.link(".tmp-%d" % me, name); os.unlink(".tmp-%d" % me)
        assert os.stat(name).st_size == len(text), name
        mine.append(name); count += 1
        if len(mine) > 40: os.unlink(mine.pop(random.randrange(40)))
    left = set(n for n in os.listdir(".") if n.startswith("%d-" % me))
    assert left == set(mine), (left ^ set(mine))
    print(count)
else:
    while time.monotonic() < end:
        names = [n for n in os.listdir(".") if not n.startswith(".")]
        assert len(names) == len(set(names)), "doubled"
        for name in random.sample(names, min(10, len(names))):
            try: text = open(name, "rb").read()
            except FileNotFoundError: continue
            assert hashlib.sha1(text).hexdigest() == name.split("-")[2], name
            count += 1
    print(count)
"#;
    // A minute in all where that is asked for.
    let seconds = std::env::var("WRITERS_SECONDS").unwrap_or_else(|_| "6".into());
    for setup in [route("auto"), route("off"), Setup::mode("strict")] {
        let pair = Pair::new(setup.clone());
        let dir = pair.mounted.path();
        let start = |role: &'static str, i: usize| {
            let mut cmd = command(["/usr/bin/python3", "-c", script, role]);
            cmd.args([&i.to_string(), &seconds]).current_dir(dir);
            std::thread::spawn(move || run_within(&mut cmd, LIMIT).clean().out())
        };
        let threads: Vec<_> = (0..4)
            .flat_map(|i| [start("write", i), start("read", i)])
            .collect();
        for thread in threads {
            let done = thread.join().expect("no panic");
            let count: u64 = done.trim().parse().expect("a number");
            assert!(count > 5, "only {count} in {seconds} s, {setup:?}");
        }
        let check = "sha1sum -- *-*-* | while read sum name; do [ \"${name##*-}\" = $sum ] || echo $name; done; ls -A | wc -l";
        let of = |dir: &Path| run_within(&mut script_in(dir, check), LIMIT).clean().out();
        let below = of(pair.mounted.source());
        assert_eq!(below.lines().count(), 1, "not what was written: {below}");
        assert_eq!(of(dir), below);
        pair.end();
    }
}
