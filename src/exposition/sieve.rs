//! Tells the lines that may carry a wanted name from the others by their first bytes.
//!
//! It never rejects a line that starts with a wanted name, and reads nothing behind the name.

/// The bytes of a line that the first look takes.
const LOOK: usize = 16;

/// Wanted names by their first bytes.
#[derive(Debug, Clone, Default)]
pub(super) struct Sieve {
    /// Keeps as many of a line's first bytes as the shortest name has, at most [`LOOK`].
    mask: u128,
    /// A hash table with open addressing and at least three of four slots empty; its length is a
    /// power of two, or nothing where no name is wanted.
    slots: Vec<Slot>,
    /// The ids of the names, those with the same first bytes together.
    ids: Vec<usize>,
}

/// The names that start with the same bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// Those bytes.
    key: u128,
    /// Where their ids start in [`Sieve::ids`].
    start: usize,
    /// Where they end; an empty slot has none.
    end: usize,
}

impl Sieve {
    /// A sieve for these names; those that are no metric name match nothing.
    pub(super) fn new(names: &[String]) -> Sieve {
        let is_name = |name: &str| starts_name(name.as_bytes()) && name.bytes().all(is_name_byte);
        let mut ids: Vec<usize> = (0..names.len()).filter(|id| is_name(&names[*id])).collect();
        let shortest = ids.iter().map(|id| names[*id].len()).min().unwrap_or(0).min(LOOK);
        let mask = if shortest == LOOK { u128::MAX } else { (1 << (shortest * 8)) - 1 };
        let key = |id: &usize| first_bytes(names[*id].as_bytes()) & mask;
        ids.sort_by_key(key);

        let slots = if ids.is_empty() { 0 } else { (ids.len() * 4).next_power_of_two() };
        let mut sieve = Sieve { mask, slots: vec![Slot::default(); slots], ids };
        let mut start = 0;
        while start < sieve.ids.len() {
            let of_start = key(&sieve.ids[start]);
            let end = start + sieve.ids[start..].iter().take_while(|id| key(id) == of_start).count();
            let free = sieve.slot(of_start);
            sieve.slots[free] = Slot { key: of_start, start, end };
            start = end;
        }
        sieve
    }

    /// Whether a wanted line may start here; `rest` may go on beyond the line.
    #[inline]
    pub(super) fn may_start(&self, rest: &[u8]) -> bool {
        let Some(first) = rest.first_chunk::<LOOK>() else {
            return true;
        };
        if matches!(first[0], b' ' | b'\t') {
            return true;
        }
        !self.candidates(u128::from_le_bytes(*first)).is_empty()
    }

    /// The wanted name that a line without leading blanks starts with, and what follows it.
    pub(super) fn find<'l>(&self, line: &'l [u8], names: &[String]) -> Option<(usize, &'l [u8])> {
        self.candidates(first_bytes(line)).iter().find_map(|id| {
            let name = names[*id].as_bytes();
            // The byte behind the name first: it tells most of the longer names apart.
            let ends = line.get(name.len()).is_none_or(|b| !is_name_byte(*b));
            if ends { line.strip_prefix(name).map(|rest| (*id, rest)) } else { None }
        })
    }

    #[inline]
    fn candidates(&self, first: u128) -> &[usize] {
        if self.slots.is_empty() {
            return &[];
        }
        let slot = self.slots[self.slot(first & self.mask)];
        &self.ids[slot.start..slot.end]
    }

    /// The slot with this key, or the empty one where it belongs.
    #[inline]
    fn slot(&self, key: u128) -> usize {
        let mut at = hash(key);
        loop {
            at &= self.slots.len() - 1;
            let slot = &self.slots[at];
            if slot.key == key || slot.start == slot.end {
                return at;
            }
            at += 1;
        }
    }
}

/// Multiplicative hashing (Knuth) of both halves; names are short text, and no one gains by making
/// them collide, for they come from the catalogue.
#[inline]
fn hash(key: u128) -> usize {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let (low, high) = (key as u64, (key >> 64) as u64);
    ((low ^ high.rotate_left(29)).wrapping_mul(ODD) >> 40) as usize
}

/// The first bytes of a name or line, zeros behind its end: no name has a zero.
fn first_bytes(text: &[u8]) -> u128 {
    let mut first = [0; LOOK];
    let length = text.len().min(LOOK);
    first[..length].copy_from_slice(&text[..length]);
    u128::from_le_bytes(first)
}

/// Whether a metric name may hold this byte.
#[inline]
pub(super) fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':'
}

/// The name that a line starts with and the byte behind it, which no longer or shorter name shares;
/// empty where the line does not start with one.
pub(super) fn name_and_end(line: &[u8]) -> &[u8] {
    match line.iter().position(|b| !is_name_byte(*b)) {
        Some(end) if end > 0 => &line[..=end],
        _ => &[],
    }
}

/// Whether a metric name may start like this.
pub(super) fn starts_name(text: &[u8]) -> bool {
    text.first().is_some_and(|b| is_name_byte(*b) && !b.is_ascii_digit())
}
