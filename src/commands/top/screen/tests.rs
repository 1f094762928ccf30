//! Tests of the screen: what stands where, in which order, in how little room.

use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Modifier;
use serde_json::json;

use super::*;

/// name, active, total, size, objects and pages of a slab, active slabs, slabs.
fn cache(name: &str, n: [u64; 7]) -> CacheInfo {
    CacheInfo {
        name: name.into(),
        active_objs: n[0],
        num_objs: n[1],
        objsize: n[2],
        objperslab: n[3],
        pagesperslab: n[4],
        active_slabs: n[5],
        num_slabs: n[6],
        ..CacheInfo::default()
    }
}

fn caches() -> Vec<CacheInfo> {
    vec![
        cache("getname_cache", [2, 16, 4096, 8, 8, 0, 2]),
        cache("dentry", [105_930, 105_984, 40, 64, 1, 1650, 1656]),
        cache("inode", [105_771, 105_776, 136, 16, 1, 6611, 6611]),
        cache("names-64", [0, 0, 72, 32, 1, 0, 0]),
        cache("filp", [1, 256, 16, 256, 1, 1, 1]),
    ]
}

fn stats() -> Value {
    json!({
        "requests": {"LOOKUP": 30, "READ": 12},
        "dcache": {
            "hits": 900, "negative_hits": 50, "misses": 50,
            "dentries": 105_930, "negative_dentries": 29, "bytes": 20_318_336, "inodes": 7,
        },
        "source": {"statx": 7, "getdents": 2},
    })
}

fn sample(at: Instant) -> Sample {
    Sample {
        at,
        counts: Counts::read(stats().as_object().unwrap()).unwrap(),
        caches: caches(),
    }
}

fn screen(sort: Sort) -> Screen {
    Screen::new("/mnt mirrors /src".into(), sort, sample(Instant::now()))
}

/// The lines about slabs are what slabtop -o of procps 4.0.2 prints for the same numbers.
#[test]
fn the_lines() {
    if page_size() != 4096 {
        return;
    }
    let lines = screen(Sort::Objects).lines();
    let wanted = [
        " /mnt mirrors /src",
        " Dentries / Negative / Bytes        : 105930 / 29 / 20318336",
        " Hits / Negative / Misses (% hit)   : 900 / 50 / 50 (95.0%)",
        " Lookups / Requests / Source per s  : - / - / -",
        " Active / Total Objects (% used)    : 211704 / 212032 (99.8%)",
        " Active / Total Slabs (% used)      : 8262 / 8270 (99.9%)",
        " Active / Total Caches (% used)     : 4 / 5 (80.0%)",
        " Active / Total Size (% used)       : 18193.62K / 18256.38K (99.7%)",
        " Minimum / Average / Maximum Object : 0.02K / 0.09K / 4.00K",
        "",
        "  OBJS ACTIVE  USE OBJ SIZE  SLABS OBJ/SLAB CACHE SIZE NAME                   ",
        "105984 105930  99%    0.04K   1656       64      6624K dentry                 ",
        "105776 105771  99%    0.13K   6611       16     26444K inode                  ",
        "   256      1   0%    0.02K      1      256         4K filp                   ",
        "    16      2  12%    4.00K      2        8        64K getname_cache          ",
        "     0      0   0%    0.07K      0       32         0K names-64               ",
    ];
    assert_eq!(lines, wanted);
}

#[test]
fn orders() {
    let order = |sort| -> String {
        let lines = screen(sort).lines();
        let names = lines.iter().skip_while(|line| *line != HEADER).skip(1);
        names
            .filter_map(|line| line.split_whitespace().last()?.chars().next())
            .collect()
    };
    // First letters; gdinf is the order in which they are given.
    let table = [
        ('a', "digfn"),
        ('b', "fdnig"),
        ('c', "idgfn"),
        ('l', "idgfn"),
        ('v', "idfgn"),
        ('n', "dfgin"),
        ('o', "difgn"),
        ('p', "gdinf"),
        ('s', "gindf"),
        ('u', "dignf"),
    ];
    assert_eq!(table.len(), SORTS.len());
    for (letter, wanted) in table {
        let sort = Sort::by_letter(letter).unwrap();
        assert_eq!(order(sort), wanted, "by {letter}");
        assert_eq!(Sort::by_letter(letter.to_ascii_uppercase()), Some(sort));
    }
    for letter in 'a'..='z' {
        let listed = Sort::letters().contains(letter);
        assert_eq!(Sort::by_letter(letter).is_some(), listed, "{letter}");
    }
}

#[test]
fn rates() {
    let begin = Instant::now();
    let mut screen = Screen::new(String::new(), Sort::Objects, sample(begin));
    let shown = |screen: &Screen| screen.lines()[3].clone();
    let mut next = sample(begin + Duration::from_millis(500));
    next.counts.hits += 10;
    next.counts.negative_hits += 3;
    next.counts.misses += 2;
    next.counts.requests += 1;
    screen.late = true;
    screen.update(next.clone());
    assert!(
        shown(&screen).ends_with(": 30.0 / 2.0 / 0.0"),
        "{}",
        shown(&screen)
    );
    assert!(!screen.late, "an answer has come");
    // Numbers that fell are another mount's or were set back: no rate below zero.
    let mut fallen = sample(begin + Duration::from_secs(1));
    fallen.counts.calls += 100;
    fallen.counts.hits = 0;
    screen.update(fallen);
    assert!(
        shown(&screen).ends_with(": 0.0 / 0.0 / 200.0"),
        "{}",
        shown(&screen)
    );
    // Twice at one moment: nothing to divide by.
    let mut twice = Screen::new(String::new(), Sort::Objects, next.clone());
    twice.update(next);
    assert!(shown(&twice).ends_with(": - / - / -"), "{}", shown(&twice));
}

#[test]
fn counts_are_all_there_or_none() {
    let full = stats();
    let counts = Counts::read(full.as_object().unwrap()).unwrap();
    assert_eq!(
        (counts.requests, counts.calls, counts.lookups()),
        (42, 9, 1000)
    );
    for (section, key) in [
        ("requests", None),
        ("source", None),
        ("dcache", None),
        ("dcache", Some("hits")),
        ("dcache", Some("bytes")),
    ] {
        let mut less = stats();
        match key {
            None => less.as_object_mut().unwrap().remove(section),
            Some(key) => less[section].as_object_mut().unwrap().remove(key),
        };
        let read = Counts::read(less.as_object().unwrap());
        assert_eq!(read, None, "without {section} {key:?}");
    }
}

#[test]
fn nothing_is_not_divided_by() {
    let empty = Sample {
        at: Instant::now(),
        counts: Counts::default(),
        caches: Vec::new(),
    };
    let lines = Screen::new(String::new(), Sort::Use, empty).lines();
    assert!(lines[2].ends_with(": 0 / 0 / 0 (0.0%)"), "{}", lines[2]);
    assert!(lines[4].ends_with(": 0 / 0 (0.0%)"), "{}", lines[4]);
    assert!(
        lines[8].ends_with(": 0.00K / 0.00K / 0.00K"),
        "{}",
        lines[8]
    );
}

/// The largest numbers that a row may have are shown and overflow nowhere.
#[test]
fn large_numbers() {
    let most = u64::from(u32::MAX);
    let mut large = sample(Instant::now());
    large.caches = vec![cache("a", [most; 7]), cache("b", [most; 7])];
    let lines = Screen::new(String::new(), Sort::CacheSize, large).lines();
    assert!(lines.last().unwrap().contains("4294967295 4294967295 100%"));
}

/// What TestBackend shows of a screen, a line each.
fn drawn(screen: &Screen, width: u16, height: u16) -> (Vec<String>, Vec<bool>) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let cell = |x, y| &buffer[(x, y)];
    (0..height)
        .map(|y| {
            let text: String = (0..width).map(|x| cell(x, y).symbol()).collect();
            let reversed = width > 0 && cell(0, y).modifier.contains(Modifier::REVERSED);
            (text.trim_end().to_owned(), reversed)
        })
        .unzip()
}

#[test]
fn drawn_as_the_lines_say() {
    let screen = screen(Sort::Name);
    let (text, reversed) = drawn(&screen, 80, 20);
    let lines = screen.lines();
    for (at, line) in text.iter().enumerate() {
        let wanted = lines.get(at).map_or("", |line| line.trim_end());
        assert_eq!(line, wanted, "line {at}");
    }
    let header = lines.iter().position(|line| line == HEADER).unwrap();
    let marked: Vec<usize> = (0..20).filter(|at| reversed[*at]).collect();
    assert_eq!(marked, [header], "the header alone is reversed");
}

#[test]
fn an_answer_that_is_owed_is_told() {
    let mut screen = screen(Sort::Name);
    assert!(!drawn(&screen, 80, 20).0[0].contains("does not answer"));
    screen.late = true;
    assert!(drawn(&screen, 80, 20).0[0].contains("does not answer"));
}

/// Whatever the room, what is shown is the upper left corner of the whole.
#[test]
fn little_room() {
    let screen = screen(Sort::Objects);
    let lines = screen.lines();
    for (width, height) in [
        (0, 0),
        (1, 1),
        (1, 50),
        (200, 1),
        (7, 3),
        (40, 12),
        (300, 100),
    ] {
        let (text, _) = drawn(&screen, width, height);
        assert_eq!(text.len(), usize::from(height));
        for (line, whole) in text.iter().zip(&lines) {
            let cut: String = whole.chars().take(width.into()).collect();
            assert_eq!(line, cut.trim_end(), "{width}x{height}");
        }
    }
}
