//! Applies the rules to one round and its windows and builds the one immutable object.
//!
//! This is where `missing[]` and `partial` are decided, in one place. It reads no Pod, keeps no
//! state between rounds and knows no engine or router by name.

mod object;

pub use object::{CacheHit, Code, Gauge, Metadata, Missing, ModelDeploymentMetrics, Windowed};
