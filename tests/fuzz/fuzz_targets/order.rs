//! Fuzzes the order check: each input encodes a program, whose verdicts, tickets and inherited
//! refusals have to equal those of the oracle, which searches through the whole past.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unused_imports, reason = "the tests of the oracle use the rest")]
#[path = "../../order/oracle/mod.rs"]
mod oracle;
#[path = "../../support/mod.rs"]
mod support;

fuzz_target!(|bytes: &[u8]| oracle::decoded::run(bytes));
