//! Wires the parts together; turns errors into text and exit codes.

fn main() {}
