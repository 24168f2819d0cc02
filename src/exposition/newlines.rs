//! Finds newlines 64 bytes at a time: lines are short, and starting a search anew for each costs more
//! than the search.

use wide::u8x16;

/// Bytes that one look takes.
const BLOCK: usize = 64;

/// The positions of the newlines of a text, in order.
#[derive(Debug)]
pub(super) struct Newlines<'t> {
    text: &'t [u8],
    /// Where the block that was looked at begins.
    block: usize,
    /// Where the next one begins.
    next: usize,
    /// A bit for each newline of the block that is still to come.
    bits: u64,
}

impl Newlines<'_> {
    pub(super) fn new(text: &[u8]) -> Newlines<'_> {
        Newlines { text, block: 0, next: 0, bits: 0 }
    }
}

impl Iterator for Newlines<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        while self.bits == 0 {
            let rest = self.text.get(self.next..).filter(|rest| !rest.is_empty())?;
            self.block = self.next;
            self.bits = match rest.first_chunk::<BLOCK>() {
                Some(block) => newlines(block),
                None => {
                    // Zeros behind the end are no newlines.
                    let mut block = [0; BLOCK];
                    block[..rest.len()].copy_from_slice(rest);
                    newlines(&block)
                }
            };
            self.next += BLOCK;
        }
        let found = self.block + self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        Some(found)
    }
}

/// A bit for each newline of a block, the first byte's lowest.
#[inline]
fn newlines(block: &[u8; BLOCK]) -> u64 {
    let newline = u8x16::splat(b'\n');
    let (parts, _) = block.as_chunks::<16>();
    let bits = |part: &[u8; 16]| u64::from(u8x16::new(*part).simd_eq(newline).to_bitmask());
    parts.iter().rev().fold(0, |all, part| (all << 16) | bits(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_newline_is_found_in_order() {
        for length in 0..200 {
            for step in 1..70 {
                let text: Vec<u8> = (0..length).map(|i| if i % step == step / 2 { b'\n' } else { b'a' }).collect();
                let expected: Vec<usize> = memchr::memchr_iter(b'\n', &text).collect();
                assert_eq!(Newlines::new(&text).collect::<Vec<_>>(), expected, "{length} {step}");
            }
        }
    }
}
