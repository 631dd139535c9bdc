//! The connections of the service: a limited number, each with a limit of time for its client.
//!
//! # Rules
//! 1. The number of connections that are served is limited. If there is no place for the next
//!    client, the connection that is idle longest is closed, after [`IDLE`] or more. If all have a
//!    request, the client waits.
//! 2. A client has a limited time to send the head of its next request, and as much to take each
//!    part of an answer. The extractor of the body has the same limit.
//! 3. A request may be refused before its body was read. The rest is then read and discarded, up
//!    to [`DISCARDED`]. Otherwise the kernel would reset the connection, and a client that still
//!    sends would not get the answer.
//! 4. [`Connections::close`] lets each connection finish the request that it has. Connections
//!    without one are closed immediately.

use axum::Router;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, copy, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;

/// The time without a request after which a connection makes room for another one. It spares
/// clients that are about to send their next request.
const IDLE: Duration = Duration::from_millis(250);
/// The time after which one more connection is closed, if the one before keeps its place.
const NEXT: Duration = Duration::from_secs(1);

/// The most bytes that are discarded after a refusal, within the time of a client.
const DISCARDED: u64 = 64 << 20;

/// The open connections. Dropping this aborts them.
pub(crate) struct Connections {
    router: Router,
    time: Duration,
    room: Arc<Semaphore>,
    /// A permit closes the first connection in its queue, which is the one that is idle longest.
    surplus: Arc<Semaphore>,
    open: JoinSet<()>,
    closing: watch::Sender<bool>,
    /// The number of connections that were cut off because their client stalled.
    cut_off: Arc<AtomicU64>,
}

/// The numbers of connections that were cut off.
#[derive(Debug, PartialEq)]
pub(crate) struct CutOff {
    /// The number of connections whose client stalled.
    pub(crate) stalled: u64,
    /// The number that were open after the grace: the client or the service was slow.
    pub(crate) open: u64,
}

impl Connections {
    /// Makes connections of which at most `most` are open, and whose clients have `time`.
    pub(crate) fn new(router: Router, most: usize, time: Duration) -> Self {
        Connections {
            router,
            time,
            room: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
            surplus: Arc::new(Semaphore::new(0)),
            open: JoinSet::new(),
            closing: watch::Sender::new(false),
            cut_off: Arc::default(),
        }
    }

    /// Accepts connections and serves them.
    pub(crate) async fn accept(&mut self, listener: &mut TcpListener) -> Infallible {
        loop {
            // After an error, such as too many open files, axum's listener waits and tries again.
            let (stream, _) = Listener::accept(listener).await;
            let place = self.place().await;
            while self.open.try_join_next().is_some() {}
            self.open(stream, place);
        }
    }

    /// Waits for a place, and closes idle connections while there is none.
    async fn place(&self) -> OwnedSemaphorePermit {
        let mut place = self.room.clone().try_acquire_owned().ok();
        while place.is_none() {
            self.surplus.add_permits(1);
            let next = timeout(NEXT, self.room.clone().acquire_owned()).await;
            place = next.ok().map(|place| place.expect("the semaphore is not closed"));
            // It is still there if no connection was idle.
            self.surplus.forget_permits(1);
        }
        place.expect("the loop ends with one")
    }

    fn open(&mut self, stream: TcpStream, place: OwnedSemaphorePermit) {
        let (router, time, cut_off) = (self.router.clone(), self.time, self.cut_off.clone());
        let (closing, surplus) = (self.closing.subscribe(), self.surplus.clone());
        self.open.spawn(async move {
            serve(stream, router, time, closing, &surplus, &cut_off).await;
            drop(place);
        });
    }

    /// Closes all connections, those with a request once it is answered, for at most `grace`.
    /// Returns the numbers of those that were cut off, now or earlier.
    pub(crate) async fn close(mut self, grace: Duration) -> CutOff {
        self.closing.send_replace(true);
        let _ = timeout(grace, async { while self.open.join_next().await.is_some() {} }).await;
        let open = self.open.len() as u64;
        self.open.shutdown().await;
        CutOff { stalled: self.cut_off.load(Ordering::Relaxed), open }
    }
}

/// Serves the requests of a connection until one of both sides closes it.
async fn serve(
    stream: TcpStream,
    router: Router,
    time: Duration,
    mut closing: watch::Receiver<bool>,
    surplus: &Semaphore,
    cut_off: &Arc<AtomicU64>,
) {
    // A small answer does not wait for the acknowledgement of the one before.
    let _ = stream.set_nodelay(true);
    let mut stream = Box::pin(TimeoutStream::new(stream));
    // Reads have no limit here: hyper also reads while a request waits for its answer.
    stream.as_mut().set_write_timeout_pinned(Some(time));
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(time);
    let refused = Arc::new(AtomicBool::new(false));
    let busy = watch::Sender::new(false);
    let service = answering(router, cut_off.clone(), refused.clone(), busy.clone());
    let mut connection = server.serve_connection(TokioIo::new(stream), service);
    let ended = tokio::select! {
        // First, so that a request that has arrived is answered.
        biased;
        ended = &mut connection => Some(ended),
        () = is_surplus(busy.subscribe(), surplus) => None,
        () = async { drop(closing.wait_for(|closing| *closing).await) } => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            // The body of an earlier request was read.
            refused.store(false, Ordering::Relaxed);
            Pin::new(&mut connection).graceful_shutdown();
            (&mut connection).await
        }
    };
    let Err(error) = ended else {
        // hyper has closed its side: the client left, or a body was not read.
        if refused.load(Ordering::Relaxed) && !*closing.borrow() {
            let mut rest = connection.into_parts().io.into_inner().take(DISCARDED);
            let discard = async { copy(&mut rest, &mut sink()).await };
            tokio::select! {
                _ = timeout(time, discard) => {}
                () = async { drop(closing.wait_for(|closing| *closing).await) } => {}
            }
        }
        return;
    };
    // The time for a head also ends a connection that is idle, which is no fault of its client.
    let is_within_head = || error.is_timeout() && !connection.into_parts().read_buf.is_empty();
    if is_write_timeout(&error) || is_within_head() {
        cut_off.fetch_add(1, Ordering::Relaxed);
    }
}

/// Resolves if the connection is idle, and makes room for another one.
async fn is_surplus(mut busy: watch::Receiver<bool>, surplus: &Semaphore) {
    let idle = async || {
        sleep(IDLE).await;
        surplus.acquire().await.expect("the semaphore is not closed").forget();
    };
    loop {
        let is_busy = *busy.borrow_and_update();
        tokio::select! {
            biased;
            Ok(()) = busy.changed() => {}
            () = idle(), if !is_busy => return,
        }
    }
}

/// Returns the service of a connection. It counts requests whose body did not arrive in time.
/// After one of those, hyper closes the connection. `refused` is set while the last answer is any
/// other refusal, and `busy` while there is a request.
fn answering(
    router: Router,
    cut_off: Arc<AtomicU64>,
    refused: Arc<AtomicBool>,
    busy: watch::Sender<bool>,
) -> impl Service<Request<Incoming>, Response = Response, Error = Infallible, Future: Send> {
    let router = TowerToHyperService::new(router);
    service_fn(move |request| {
        busy.send_replace(true);
        let (answer, cut_off, refused) = (router.call(request), cut_off.clone(), refused.clone());
        let busy = busy.clone();
        async move {
            let answer = answer.await?;
            busy.send_replace(false);
            let (status, late) = (answer.status(), StatusCode::REQUEST_TIMEOUT);
            cut_off.fetch_add((status == late).into(), Ordering::Relaxed);
            refused.store(!status.is_success() && status != late, Ordering::Relaxed);
            Ok(answer)
        }
    })
}

fn is_write_timeout(error: &hyper::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|source| source.kind() == io::ErrorKind::TimedOut)
}
