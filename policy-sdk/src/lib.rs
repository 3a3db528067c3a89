//! Write capacity policies for gpu-bridge: a trait, a macro, and the types of the ABI.
