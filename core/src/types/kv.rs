//! Keys of a `KVWorker`: which parameters they are.

/// The place of a part in the value of a key.
///
/// The keys of ps-lite are parameters with the names `kv/APP/KEY`. A server knows tensors by the hashes of their names, so a worker says
/// these numbers in its headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyPart {
    /// The app whose key it is.
    pub app: u64,
    /// The key.
    pub key: u64,
    /// Where the part begins in the value, in bytes.
    pub offset: u64,
}

impl KeyPart {
    /// The part that begins at `offset` of the parameter `name`; `None` if that is no key.
    pub fn of(name: &str, offset: u64) -> Option<Self> {
        let (app, key) = name.strip_prefix("kv/")?.split_once('/')?;
        Some(Self { app: number(app)?, key: number(key)?, offset })
    }
}

/// A number as `KVWorker` writes it: without a sign and without zeros in front.
fn number(text: &str) -> Option<u64> {
    let is_canonical = text.bytes().all(|digit| digit.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_canonical)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_known_by_its_name() {
        let of = |name| KeyPart::of(name, 64).map(|part| (part.app, part.key, part.offset));
        assert_eq!(of("kv/0/7"), Some((0, 7, 64)));
        assert_eq!(of("kv/3/18446744073709551615"), Some((3, u64::MAX, 64)));
        for other in
            ["kv/0", "kv/0/", "kv//7", "kv/0/07", "kv/0/+7", "kv/0/7/1", "kv/a/7", "kv/0/18446744073709551616", "w/0/7"]
        {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
