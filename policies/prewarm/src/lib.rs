//! Windows in, wanted ready nodes out: takes nodes early enough and gives them back after the cool-down.
