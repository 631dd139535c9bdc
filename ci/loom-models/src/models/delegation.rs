//! A request left at the desk is served by somebody.

use crate::desk::{Desk, Serve};
use crate::sync::{Arc, AtomicU64, Ordering};
use loom::thread;

struct Clerk(Arc<AtomicU64>);

impl Serve for Clerk {
    fn serve(&mut self, ticket: u64) {
        self.0.fetch_max(ticket, Ordering::AcqRel);
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_request_is_served_by_the_sitter_or_by_who_left_it() {
    loom::model(|| {
        let served = Arc::new(AtomicU64::new(0));
        let desk = Arc::new(Desk::new(Clerk(served.clone()), true));
        let sitter = thread::spawn({
            let desk = desk.clone();
            move || drop(desk.sit())
        });
        desk.request(1);
        sitter.join().unwrap();
        assert_eq!(served.load(Ordering::Acquire), 1, "the request is lost");
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn two_requests_and_a_sitter_lose_none() {
    loom::model(|| {
        let served = Arc::new(AtomicU64::new(0));
        let desk = Arc::new(Desk::new(Clerk(served.clone()), true));
        let sitter = thread::spawn({
            let desk = desk.clone();
            move || drop(desk.sit())
        });
        let other = thread::spawn({
            let desk = desk.clone();
            move || desk.request(2)
        });
        desk.request(1);
        sitter.join().unwrap();
        other.join().unwrap();
        assert_eq!(served.load(Ordering::Acquire), 2, "a request is lost");
    });
}
