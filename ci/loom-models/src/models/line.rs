//! The thread of a line takes every entry, and ends.

use crate::line::{Line, Put};
use crate::sync::{Arc, AtomicUsize, Ordering, Parker};
use loom::thread::{self, JoinHandle};

/// Puts an entry, and starts the line's thread if told to.
fn put(line: &Arc<Line<usize>>, entry: usize, served: &Arc<AtomicUsize>) -> Option<JoinHandle<()>> {
    match line.put(entry) {
        Put::Seen => None,
        Put::Start => Some(thread::spawn({
            let (line, served) = (line.clone(), served.clone());
            move || serve(&line, &served)
        })),
        Put::Back(_) => panic!("no model gives a line up"),
    }
}

fn serve(line: &Line<usize>, served: &AtomicUsize) {
    let parker = Parker::here();
    let mut stays_awake = true;
    while let Some(entry) = line.next(&parker, || std::mem::take(&mut stays_awake)) {
        served.fetch_add(entry, Ordering::Relaxed);
    }
}

#[test]
fn every_entry_is_served_although_the_line_closes() {
    loom::model(|| {
        let line = Arc::new(Line::new());
        let served = Arc::new(AtomicUsize::new(0));
        let other = thread::spawn({
            let (line, served) = (line.clone(), served.clone());
            move || put(&line, 2, &served)
        });
        let mine = put(&line, 1, &served);
        line.close();
        let theirs = other.join().unwrap();
        for thread in mine.into_iter().chain(theirs) {
            thread.join().unwrap();
        }
        assert_eq!(served.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn an_entry_put_after_the_end_of_the_thread_starts_another() {
    loom::model(|| {
        let line = Arc::new(Line::new());
        let served = Arc::new(AtomicUsize::new(0));
        line.close();
        for entry in [1, 2] {
            if let Some(thread) = put(&line, entry, &served) {
                thread.join().unwrap();
            }
        }
        assert_eq!(served.load(Ordering::Relaxed), 3);
    });
}
