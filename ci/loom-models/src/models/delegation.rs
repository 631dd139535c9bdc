//! The holder of the lock serves each request, or the requesting thread does.

use crate::delegation::{DelegationLock, Serve};
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
fn a_request_is_served_by_the_holder_or_by_who_asked() {
    loom::model(|| {
        let served = Arc::new(AtomicU64::new(0));
        let lock = Arc::new(DelegationLock::new(Clerk(served.clone()), true));
        let holder = thread::spawn({
            let lock = lock.clone();
            move || drop(lock.lock())
        });
        lock.delegate(1);
        holder.join().unwrap();
        assert_eq!(served.load(Ordering::Acquire), 1, "the request is lost");
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn two_requests_and_a_holder_lose_none() {
    loom::model(|| {
        let served = Arc::new(AtomicU64::new(0));
        let lock = Arc::new(DelegationLock::new(Clerk(served.clone()), true));
        let holder = thread::spawn({
            let lock = lock.clone();
            move || drop(lock.lock())
        });
        let other = thread::spawn({
            let lock = lock.clone();
            move || lock.delegate(2)
        });
        lock.delegate(1);
        holder.join().unwrap();
        other.join().unwrap();
        assert_eq!(served.load(Ordering::Acquire), 2, "a request is lost");
    });
}
