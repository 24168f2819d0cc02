//! What a Pod's arguments say about the questions of the catalogue, and nothing else.
//!
//! Arguments hold API keys: only whether a flag of the catalogue is given, and the values the
//! catalogue lists, are kept; no other word is stored, logged or printed.

use crate::catalogue::ArgumentSpec;
use std::collections::BTreeMap;

/// The catalogue's arguments that a Pod gives, with the last value where the catalogue lists values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arguments {
    given: BTreeMap<String, Option<String>>,
}

impl Arguments {
    /// Reads a Pod's arguments (contract, section 3) for the arguments that its software's catalogue file lists.
    pub fn read(_args: &[String], _specs: &[ArgumentSpec]) -> Arguments {
        Arguments::default()
    }

    /// Whether an argument is given.
    pub fn has(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    /// The last value of an argument: one of those that the catalogue lists, else none.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.given.get(name)?.as_deref()
    }
}
