//! Password files for basic authentication, as `htpasswd -B` writes them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Reads the users of a password file: their bcrypt hashes by name. A line is `NAME:HASH`; empty
/// lines and those that start with `#` are ignored.
///
/// # Errors
/// A sentence with the file, the line and the fix.
pub fn read_users(path: &Path) -> Result<BTreeMap<String, String>, String> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|reason| {
        format!("cannot read the users in {shown}: {reason}; create it with `htpasswd -B -c`")
    })?;
    parse(&text).map_err(|reason| format!("{shown}, {reason}"))
}

fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut users = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |reason: &str| format!("line {}: {reason}", at + 1);
        let (name, hash) =
            line.split_once(':').ok_or_else(|| wrong("a user is written as NAME:HASH"))?;
        if !is_bcrypt(hash) {
            return Err(wrong("the hash is not of bcrypt; write it anew with `htpasswd -B`"));
        }
        if users.insert(name.to_owned(), hash.to_owned()).is_some() {
            return Err(wrong(&format!("{name:?} is there twice; keep one")));
        }
    }
    match users.is_empty() {
        true => Err("line 1: there is no user; add one with `htpasswd -B`".to_owned()),
        false => Ok(users),
    }
}

/// `$2y$COST$` and 53 characters: 16 bytes of salt, 23 of the hash.
fn is_bcrypt(hash: &str) -> bool {
    let Some((cost, digest)) =
        ["$2a$", "$2b$", "$2y$"].iter().find_map(|kind| hash.strip_prefix(kind)?.split_once('$'))
    else {
        return false;
    };
    let alphabet = |byte: u8| byte.is_ascii_alphanumeric() || b"./".contains(&byte);
    cost.parse().is_ok_and(|cost: u8| (4..=31).contains(&cost))
        && digest.len() == 53
        && digest.bytes().all(alphabet)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "$2y$05$abcdefghijklmnopqrstuuWJ1kq3oQ2Jc1p7c0eJwZ8xq3o7Zl9Hy";

    #[test]
    fn users_have_hashes_of_bcrypt() {
        let users = parse(&format!("# staff\n\nann:{HASH}\nbob:{HASH}\n")).unwrap();
        assert_eq!(users.into_keys().collect::<Vec<_>>(), ["ann", "bob"]);
        for (text, word) in [
            ("".to_owned(), "no user"),
            ("ann".to_owned(), "NAME:HASH"),
            ("ann:$apr1$x$y".to_owned(), "htpasswd -B"),
            (format!("ann:{}", &HASH[..50]), "htpasswd -B"),
            (format!("ann:{HASH}\nann:{HASH}"), "line 2"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
