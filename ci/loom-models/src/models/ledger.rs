//! All reads of a stream are in one place at any time, whether the book of a ledger is sharded or
//! not.

use crate::book::Read;
use crate::clock::{StreamId, Use};
use crate::ledger::Ledger;
use crate::sync::Arc;
use loom::thread;

const STREAM: StreamId = StreamId(1);
const OTHER: StreamId = StreamId(2);

/// Enters a read of an op.
fn read(ledger: &Ledger, stream: StreamId, ticket: u64) {
    ledger.open_to_read(stream).records.push(Read { used: Use { stream, ticket } });
}

/// Finds the ledger locked until its book is sharded.
fn contend(ledger: &Ledger) {
    for _ in 0..crate::ledger::PATIENCE {
        drop(ledger.open_contended(OTHER));
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_read_that_is_undone_is_found_while_the_book_is_sharded_and_collected() {
    loom::model(|| {
        let ledger = Arc::new(Ledger::unknown());
        // The shards exist, and the book is not sharded.
        contend(&ledger);
        drop(ledger.open());
        let others = thread::spawn({
            let ledger = ledger.clone();
            move || {
                contend(&ledger);
                drop(ledger.open());
            }
        });
        read(&ledger, STREAM, 1);
        let was_there = ledger.open_to_read(STREAM).records.remove(STREAM, 1);
        assert!(was_there, "the read is elsewhere");
        others.join().unwrap();
        assert_eq!(ledger.open().records.0, [], "a read came back");
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn an_exclusive_opening_finds_the_reads_of_all_shards() {
    loom::model(|| {
        let ledger = Arc::new(Ledger::unknown());
        let others = thread::spawn({
            let ledger = ledger.clone();
            move || {
                contend(&ledger);
                read(&ledger, OTHER, 1);
            }
        });
        read(&ledger, STREAM, 1);
        others.join().unwrap();
        let mut streams: Vec<u32> = ledger.open().records.0.iter().map(|read| read.used.stream.0).collect();
        streams.sort_unstable();
        assert_eq!(streams, [1, 2]);
    });
}
