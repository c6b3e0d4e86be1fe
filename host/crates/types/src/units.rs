//! Sizes for people.

use std::fmt;

/// A number of bytes, in the largest unit that represents it exactly: `25 MiB`, `1500 bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.iter().find(|(size, _)| self.0 >= *size && self.0.is_multiple_of(*size)) {
            Some((size, name)) => write!(f, "{} {name}", self.0 / size),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_exact_in_the_largest_unit() {
        for (bytes, text) in [(0, "0 bytes"), (1000, "1000 bytes"), (75 << 20, "75 MiB"), (3 << 30, "3 GiB")]
        {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
