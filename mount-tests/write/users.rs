//! Several users at work in one tree, as real uids: owners, modes, access lists and
//! refusals as in a plain directory.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;

use super::{Pair, route, script_in};
use crate::harness::Setup;
use crate::need;
use crate::run::run_within;

/// Shell functions for all scripts here: `as UID GROUPS COMMAND` and `show`, which
/// prints everything there is about everybody's files.
const WORDS: &str = r#"
as() {
    local user=$1 groups=$2; shift 2
    case $groups in '') groups=--clear-groups ;; *) groups=--groups=$groups ;; esac
    setpriv --reuid="$user" --regid="$user" "$groups" -- bash -c "$*" 2>&1 |
        sed 's/^bash: line [0-9]*: //'
    echo "$user: ${PIPESTATUS[0]}"
}
show() {
    find . -printf '%P %y %m %U %G %n %s %l\n' | sort
    find . ! -type l -print0 | sort -z | xargs -0 getfacl -pn 2>&1
    find . -print0 | sort -z | xargs -0 getfattr -hdm - -e hex -- 2>&1
}
"#;

/// Runs a script in a plain directory and on mounts of each kind, and compares.
#[track_caller]
fn same(script: &str) {
    let setups = [
        route("auto"),
        route("off"),
        Setup::mode("strict"),
        Setup::mode("ttl").arg("--attr-ttl=1h").arg("--ttl=1h"),
    ];
    for setup in setups {
        let pair = Pair::new(setup);
        for dir in [&pair.plain, pair.mounted.source()] {
            let all = std::fs::Permissions::from_mode(0o777);
            std::fs::set_permissions(dir, all).expect("chmod");
        }
        let done = pair.same(&format!("{WORDS}{script}\nshow"));
        assert!(done.out().lines().count() > 5, "{}", done.out());
        pair.end();
    }
}

/// Two users and a group in one set-group-id directory: what they make belongs to its
/// maker and to the group, directories hand the bit on, and each may change what the
/// group may write.
#[test]
fn users_in_a_shared_directory() {
    need!(Root, Program("setpriv"), Program("setfacl"));
    same(
        r#"
        mkdir shared && chgrp 3000 shared && chmod 2770 shared
        for u in 2001 2002; do
            as $u 3000 "umask 007; cd shared && echo $u > of-$u && mkdir dir-$u && echo x > dir-$u/in
                ln -s of-$u link-$u; mkfifo fifo-$u; cp of-$u copy-$u; ln of-$u hard-$u"
        done
        as 2001 3000 "echo more >> shared/of-2002; cat shared/of-2002; echo new > shared/dir-2002/by-2001"
        as 2002 3000 "mv shared/of-2001 shared/dir-2002/taken; rm shared/dir-2001/in; rmdir shared/dir-2001"
        as 2001 3000 "chmod 600 shared/of-2002; chgrp 3000 shared/hard-2001; chown 2002 shared/hard-2001"
        as 2003 '' "ls shared; cat shared/of-2002; touch shared/x; stat -c %a shared/of-2002"
        as 2003 3000 "ls shared | wc -l; cat shared/of-2002"
        as 2001 '' "ls shared"
        "#,
    );
}

/// The umask of the process that makes a file counts, for each kind of file.
#[test]
fn users_umask() {
    need!(Root, Program("setpriv"), Program("setfacl"));
    same(
        r#"
        for mask in 000 022 027 077 0777 111; do
            as 2001 '' "umask $mask; mkdir d-$mask; touch f-$mask; mkfifo p-$mask; ln -s x l-$mask
                mkdir -m 1777 m-$mask; mknod -m 666 q-$mask p"
            umask $mask; mkdir root-d-$mask; : > root-f-$mask; mknod root-c-$mask c 1 3
            umask 022
        done
        # The same process under one mask and then under another.
        as 2001 '' "for m in 000 077 002; do umask \$m; : > turn-\$m; done"
        "#,
    );
}

/// A directory's default access list goes to what is made in it and takes the place of
/// the umask; chmod and access lists follow one another.
#[test]
fn users_default_acl() {
    need!(Root, Program("setpriv"), Program("setfacl"));
    same(
        r#"
        mkdir d && chown 2001:3000 d
        setfacl -m u:2002:rwx,g:3000:rx -d -m u::rwx,u:2002:rw,g::rx,g:3001:r,m::rwx,o::- d
        as 2001 3000 "umask 077; cd d; touch f; mkdir sub; mkfifo p; mkdir -m 700 tight; echo x > sub/g"
        as 2002 '' "cd d; echo by-2002 > h; cat f; echo more >> f; echo y >> sub/g; ls sub"
        as 2003 3001 "cat d/f; echo z >> d/f; touch d/z"
        as 2003 3000 "ls d; cat d/f; touch d/z"
        as 2001 '' "chmod 640 d/f; chmod g-w d/sub; setfacl -m u:2003:r d/f; setfacl -x u:2002 d/h"
        as 2003 '' "cat d/f; setfacl -m u:2003:rwx d/f"
        as 2001 '' "cp -p d/f d/copy; setfacl -b d/f; setfacl -k d/sub; touch d/sub/after"
        # What cp writes is what a stat sees at once.
        stat -c %a d/f d/copy d/sub
        "#,
    );
}

/// In a sticky directory only the owners of a file or of the directory remove or rename
/// it.
#[test]
fn users_sticky() {
    need!(Root, Program("setpriv"), Program("setfacl"));
    same(
        r#"
        mkdir t own && chmod 1777 t && chown 2001 own && chmod 1777 own
        as 2001 '' "echo 1 > t/one; mkdir t/dir"
        as 2002 '' "rm -f t/one; mv t/one t/two; rmdir t/dir; ln t/one t/hard; echo x > own/of-2002
            : > t/mine; mv t/mine t/one"
        as 2001 '' "rm own/of-2002; mv t/one t/three; rm -f t/mine"
        "#,
    );
}

/// Who may give files away, to which groups, and what happens to the bits then.
#[test]
fn users_chown_rules() {
    need!(Root, Program("setpriv"), Program("setfacl"));
    same(
        r#"
        for f in a b c d e g; do : > $f; chown 2001:2001 $f; chmod 6755 $f; done
        : > nox; chown 2001:2001 nox; chmod 2644 nox
        mkdir dir; chown 2001:2001 dir; chmod 6777 dir
        as 2001 3000 "chown 2002 a; chgrp 3000 b; chgrp 3001 c; chown 2001 d; chgrp 2001 e; chgrp 3000 nox dir"
        as 2002 3000 "chgrp 3000 g; chmod 600 g; touch g; touch -d @0 g"
        stat -c '%n %a' a b c d e g nox dir
        for f in a b c d e g; do chmod 6755 $f; done
        chown 2001:2001 a; chgrp 3000 b; chown 2001 c; chown -h 0:0 d; chmod 2755 nox; chown 5:5 nox
        as 2001 '' "chmod 2755 c; chmod 7777 dir; chmod g+s e"
        ln -s a link; chown -h 7:8 link; as 2001 '' "chown -h 2002 link"
        "#,
    );
}

/// Set-user-id, set-group-id and file capabilities are gone after a write, a truncation,
/// an allocation or a change of owner, for whom they go on the source; a reader sees it
/// at once.
#[test]
fn users_privileges_dropped() {
    need!(
        Root,
        Program("setpriv"),
        Program("setfacl"),
        Program("setcap")
    );
    same(
        r#"
        for how in append overwrite truncate shrink fallocate punch direct map copy sendfile; do
            for who in 0 2001; do
                f=$how-$who
                head -c 8192 /dev/zero > $f; chown 2001:2001 $f; chmod 6777 $f
                # What a mapping wrote is written by whoever writes it back: there it falls.
                [ $how = map ] || setcap cap_net_raw=ep $f
                chmod 6777 $f
                case $how in
                append) do="echo x >> $f" ;;
                overwrite) do="printf x | dd of=$f conv=notrunc status=none" ;;
                truncate) do=": > $f" ;;
                shrink) do="truncate -s 100 $f" ;;
                fallocate) do="fallocate -l 20000 $f" ;;
                punch) do="fallocate -p -o 0 -l 4096 $f" ;;
                direct) do="dd if=/dev/zero of=$f bs=4096 count=1 oflag=direct conv=notrunc status=none" ;;
                map) do="/usr/bin/python3 -c 'import mmap,os
m=mmap.mmap(os.open(\"$f\",os.O_RDWR),8192); m[0]=65; m.flush()'" ;;
                copy) do="/usr/bin/python3 -c 'import os
os.copy_file_range(os.open(\"$f\",os.O_RDONLY),os.open(\"$f\",os.O_WRONLY),100,0,4096)'" ;;
                sendfile) do="/usr/bin/python3 -c 'import os
os.sendfile(os.open(\"$f\",os.O_WRONLY),os.open(\"$f\",os.O_RDONLY),0,100)'" ;;
                esac
                as $who '' "$do"
                stat -c '%n %a %s' $f; getcap $f
            done
        done
        # Its owner with the group among the others only.
        : > group; chown 2001:3000 group; chmod 2777 group
        as 2001 '' "echo x >> group"; stat -c %a group
        : > member; chown 2001:3000 member; chmod 2777 member
        as 2001 3000 "echo x >> member"; stat -c %a member
        # Without execution by the group the bit means something else.
        : > mandatory; chown 2001:2001 mandatory; chmod 2666 mandatory
        as 2001 '' "echo x >> mandatory"; stat -c %a mandatory
        "#,
    );
}

/// Groups that a user has besides its own open what they open on the source; a
/// directory of mode 700 hides everything; root's files stay root's.
#[test]
fn users_supplementary_groups() {
    need!(Root, Program("setpriv"), Program("setfacl"));
    let groups: Vec<String> = (4000..4040).map(|g| g.to_string()).collect();
    let mut script = String::from(
        r#"
        mkdir g && chgrp 3000 g && chmod 770 g; echo secret > g/f; chgrp 3000 g/f; chmod 640 g/f
        mkdir private && chown 2001 private && chmod 700 private; echo x > private/f
        echo root > root; chmod 600 root
        as 2001 '' "cat g/f; touch g/n; ls g"
        as 2001 3000 "cat g/f; touch g/n; echo x >> g/f; ls g; rm -f g/f"
        as 2002 3000 "cat private/f; ls private; touch private/n; stat private/f"
        as 2001 '' "cat root; echo x > root; rm -f root; mv root r2; touch root; : < root"
        as 2001 '' "test -r root; echo \$?; test -w private/f; echo \$?; test -x g; echo \$?"
        "#,
    );
    // More than the 32 that some protocols carry.
    let _ = write!(
        script,
        "mkdir many; chgrp 4039 many; chmod 770 many; as 2001 {} 'touch many/f; ls many'",
        groups.join(",")
    );
    same(&script);
}

/// Two users making, renaming, and removing in one directory at the same time: nobody's
/// file ever bears another's owner.
#[test]
fn users_at_the_same_time() {
    need!(Root, Program("setpriv"));
    let pair = Pair::new(Setup::mode("ttl"));
    let script = r#"
        mkdir both && chmod 1777 both
        work() {
            setpriv --reuid=$1 --regid=$1 --groups=3000 -- bash -c '
                umask $2; cd both
                for i in $(seq 150); do
                    : > $1-$i || exit 1
                    [ "$(stat -c "%u %g %a" $1-$i)" = "$1 $1 $3" ] || { stat $1-$i; exit 1; }
                    mkdir $1-d-$i && mv $1-$i $1-d-$i/x || exit 1
                    [ $((i % 2)) = 0 ] || rm -r $1-d-$i || exit 1
                done' work $1 $2 $3
        }
        work 2001 077 600 & a=$!; work 2002 022 644 & b=$!; work 2003 007 660 & c=$!
        wait $a && wait $b && wait $c; echo $?
        find both -printf '%P %U %G %m %n\n' | sort
    "#;
    let run = |i: usize| {
        let dir = pair.both()[i].1;
        run_within(
            &mut script_in(dir, script),
            std::time::Duration::from_secs(120),
        )
        .out()
    };
    let plain = run(0);
    assert!(
        plain.starts_with("0\n") && plain.lines().count() > 400,
        "{plain}"
    );
    assert_eq!(plain, run(1));
    pair.end();
}
