//! `-o` lists as mount(8) writes them (floor F7).
//!
//! A list is words separated by commas, each with an optional `=value`. A comma
//! belongs to a value when a backslash stands before it (libfuse's way) or when
//! it stands between double quotes (mount(8)'s way). This module splits and
//! knows no word's meaning.

/// One word of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The bytes before the first `=`.
    pub name: Vec<u8>,
    /// The bytes after it, escapes and quotes undone.
    pub value: Option<Vec<u8>>,
}

/// What makes a list unreadable, as the end of a sentence about it.
pub type Reason = &'static str;

/// Splits a list into its words. Empty words (`ro,,nosuid`) are skipped, as mount(8) does.
pub fn words(list: &[u8]) -> Result<Vec<Word>, Reason> {
    let mut words = Vec::new();
    let mut word = Word {
        name: Vec::new(),
        value: None,
    };
    let mut quoted = false;
    let mut bytes = list.iter().copied();
    while let Some(byte) = bytes.next() {
        let literal = match byte {
            b'\\' => Some(
                bytes
                    .next()
                    .ok_or("ends in a backslash that escapes nothing")?,
            ),
            b'"' => {
                quoted = !quoted;
                None
            }
            b',' if !quoted => {
                finish(&mut word, &mut words)?;
                None
            }
            b'=' if !quoted && word.value.is_none() => {
                word.value = Some(Vec::new());
                None
            }
            other => Some(other),
        };
        if let Some(literal) = literal {
            word.value.as_mut().unwrap_or(&mut word.name).push(literal);
        }
    }
    if quoted {
        return Err("has a double quote that is not closed");
    }
    finish(&mut word, &mut words)?;
    Ok(words)
}

/// Moves a finished word to the list.
fn finish(word: &mut Word, words: &mut Vec<Word>) -> Result<(), Reason> {
    let done = std::mem::replace(
        word,
        Word {
            name: Vec::new(),
            value: None,
        },
    );
    match (done.name.is_empty(), &done.value) {
        (true, None) => Ok(()),
        (true, Some(_)) => Err("has a value without a name before its '='"),
        (false, _) => {
            words.push(done);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(list: &str) -> Result<Vec<(String, Option<String>)>, Reason> {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        words(list.as_bytes()).map(|w| {
            w.into_iter()
                .map(|w| (text(w.name), w.value.map(text)))
                .collect()
        })
    }

    #[test]
    fn lists() {
        type Expected<'a> = &'a [(&'a str, Option<&'a str>)];
        let table: &[(&str, Expected<'_>)] = &[
            ("", &[]),
            (",", &[]),
            ("ro", &[("ro", None)]),
            ("ro,,nosuid,", &[("ro", None), ("nosuid", None)]),
            ("ttl=5s,ro", &[("ttl", Some("5s")), ("ro", None)]),
            ("fsname=", &[("fsname", Some(""))]),
            ("fsname=a=b", &[("fsname", Some("a=b"))]),
            (r"fsname=a\,b,ro", &[("fsname", Some("a,b")), ("ro", None)]),
            (r"fsname=a\\,ro", &[("fsname", Some(r"a\")), ("ro", None)]),
            (r"fsname=a\=b", &[("fsname", Some("a=b"))]),
            (
                r#"fsname="a,b",ro"#,
                &[("fsname", Some("a,b")), ("ro", None)],
            ),
            (r#"fsname=a\"b"#, &[("fsname", Some("a\"b"))]),
            (r#"fsname="a\"b""#, &[("fsname", Some("a\"b"))]),
            (" ro", &[(" ro", None)]),
        ];
        for (list, expected) in table {
            let got = split(list).unwrap();
            let got: Vec<_> = got
                .iter()
                .map(|(n, v)| (n.as_str(), v.as_deref()))
                .collect();
            assert_eq!(&got, expected, "{list:?}");
        }
    }

    #[test]
    fn unreadable_lists() {
        for list in [r"ro\", "=5", "ro,=5", r#"fsname="a"#, r#"fsname="a,ro"#] {
            assert!(split(list).is_err(), "{list:?}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_pass() {
        let words = words(b"fsname=\xff\xfe,ro").unwrap();
        assert_eq!(words[0].value.as_deref(), Some(&b"\xff\xfe"[..]));
    }
}
