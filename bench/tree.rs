//! A seeded tree: wide, deep, and with long names.
//!
//! The same seed and size give the same names, sizes and shape everywhere.
//! Files are sparse: names and attributes are what is measured.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::support::Random;

/// What the tree is made of, as shares of all names in percent.
const WIDE: usize = 20; // one directory holds them all
const DEEP: usize = 5; // chains of directories, 60 below each other
const LONG: usize = 5; // names of 200 to 255 bytes
const CHAIN: usize = 60;
const FANOUT: usize = 12; // files in an ordinary directory, on average

const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789_-.";

struct Grower {
    random: Random,
    left: usize,
}

impl Grower {
    /// A name of `length` bytes that `number` makes unique among its siblings.
    fn name(&mut self, length: usize, number: usize) -> String {
        let mut name = format!("{number:x}-");
        while name.len() < length {
            name.push(char::from(LETTERS[self.random.below(LETTERS.len())]));
        }
        name
    }

    /// Name lengths as they are found on real machines: mostly 8 to 23, a tail to 60.
    fn ordinary_length(&mut self) -> usize {
        match self.random.below(100) {
            0..75 => 8 + self.random.below(16),
            75..95 => 24 + self.random.below(16),
            _ => 40 + self.random.below(21),
        }
    }

    fn file(&mut self, dir: &Path, length: usize, number: usize) -> io::Result<()> {
        let name = self.name(length, number);
        let size = self.random.next() % (1 << self.random.below(18));
        File::create(dir.join(name))?.set_len(size)?;
        self.left = self.left.saturating_sub(1);
        Ok(())
    }

    fn directory(&mut self, parent: &Path, number: usize) -> io::Result<PathBuf> {
        let length = self.ordinary_length().min(24);
        let dir = parent.join(self.name(length, number));
        fs::create_dir(&dir)?;
        self.left = self.left.saturating_sub(1);
        Ok(dir)
    }
}

/// Makes the tree in `dir`, or finds it there, and gives its root.
pub fn generate(dir: &Path, seed: u64, names: usize) -> io::Result<PathBuf> {
    let root = dir.join(format!("tree-{seed}-{names}"));
    let complete = dir.join(format!("tree-{seed}-{names}.complete"));
    if complete.exists() {
        return Ok(root);
    }
    if root.exists() {
        return Err(io::Error::other(format!(
            "{} was begun and not finished: remove it",
            root.display()
        )));
    }
    fs::create_dir_all(&root)?;
    let mut grower = Grower {
        random: Random(seed),
        left: names,
    };
    grow(&mut grower, &root, names)?;
    File::create(complete)?;
    Ok(root)
}

fn grow(grower: &mut Grower, root: &Path, names: usize) -> io::Result<()> {
    let wide = root.join("wide");
    fs::create_dir(&wide)?;
    for number in 0..names * WIDE / 100 {
        let length = grower.ordinary_length();
        grower.file(&wide, length, number)?;
    }
    let long = root.join("long");
    fs::create_dir(&long)?;
    for number in 0..names * LONG / 100 {
        let length = 200 + grower.random.below(56);
        grower.file(&long, length, number)?;
    }
    let deep = root.join("deep");
    fs::create_dir(&deep)?;
    for chain in 0..(names * DEEP / 100).div_ceil(2 * CHAIN) {
        let mut dir = grower.directory(&deep, chain)?;
        for level in 0..CHAIN {
            let length = grower.ordinary_length();
            grower.file(&dir, length, 1)?;
            if level + 1 < CHAIN {
                dir = grower.directory(&dir, 0)?;
            }
        }
    }
    // The rest is an ordinary tree: a new directory hangs below any earlier one.
    let ordinary = root.join("ordinary");
    fs::create_dir(&ordinary)?;
    let mut dirs = vec![ordinary];
    while grower.left > 0 {
        let parent = dirs[grower.random.below(dirs.len())].clone();
        let dir = grower.directory(&parent, dirs.len())?;
        for number in 0..grower.random.below(2 * FANOUT + 1).min(grower.left) {
            let length = grower.ordinary_length();
            grower.file(&dir, length, number)?;
        }
        dirs.push(dir);
    }
    Ok(())
}
