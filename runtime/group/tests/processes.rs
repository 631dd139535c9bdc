//! Groups whose ranks are processes, which are killed or stopped.
//!
//! Each process is this executable, with the one test `as_a_rank`. It takes commands from its
//! standard input and writes what becomes of them.

use std::io::{BufRead, BufReader, Lines, Write, stdin};
use std::net::TcpListener;
use std::panic::Location;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;
use warpline_group::{Config, Session};
use warpline_ranks::{Call, Check, Element, Kind, Made, Number, Rank, Reduce, Token};

/// Long enough for a busy machine. No test waits for it to pass.
const LONG: Duration = Duration::from_secs(120);

fn sum(length: u64) -> Call {
    let kind = Kind::AllReduce(Reduce::Sum);
    Call { kind, element: Element::F32, length, joined: false, beside: 0, collectives: 0 }
}

/// A process of a rank.
struct Process {
    child: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts a rank. Rank 0 listens at a port that the system picks, and says its address.
    fn start(rank: Rank, size: Rank, address: &str) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("a test has an executable"));
        command.args(["as_a_rank", "--exact", "--nocapture"]);
        command
            .env("TEST_RANK", rank.to_string())
            .env("TEST_SIZE", size.to_string())
            .env("TEST_ADDRESS", address);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the process starts");
        let commands = child.stdin.take().expect("it has an input");
        let answers = BufReader::new(child.stdout.take().expect("it has an output")).lines();
        Process { child, commands, answers }
    }

    fn order(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("the process reads");
    }

    /// Returns the next answer, without the words of the test harness.
    #[track_caller]
    fn answer(&mut self) -> String {
        loop {
            let line = self.answers.next().expect("the process still runs").expect("its output is text");
            if let Some((_, answer)) = line.split_once("> ") {
                return answer.to_string();
            }
        }
    }

    #[track_caller]
    fn expect(&mut self, command: &str, answer: &str) {
        self.order(command);
        assert_eq!(self.answer(), answer);
    }

    /// Returns the failure of the rank's group.
    #[track_caller]
    fn failure(&mut self) -> String {
        self.order("failure");
        self.answer()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the number is that of a child that this process has not waited for, so no other
        // process has it.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts all ranks, and waits until they have met.
fn start_all(size: Rank) -> Vec<Process> {
    let mut host = Process::start(0, size, "");
    let address = host.answer();
    let mut ranks = vec![host];
    ranks.extend((1..size).map(|rank| Process::start(rank, size, &address)));
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.answer(), "met"));
    ranks
}

fn call_all(ranks: &mut [Process]) {
    ranks.iter_mut().for_each(|rank| rank.order("call"));
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.answer(), "called"));
    ranks.iter_mut().for_each(|rank| rank.expect("wait", "allowed"));
}

#[test]
fn a_killed_rank_is_named_with_its_last_call() {
    let mut ranks = start_all(3);
    call_all(&mut ranks);
    ranks[2].signal(libc::SIGKILL);
    let text = ranks[0].failure();
    assert!(text.starts_with("rank 2 is lost: its connection has "), "{text}");
    assert!(text.contains("Its last reported call is all_reduce (sum) of 8 f32 at "), "{text}");
    assert_eq!(ranks[1].failure(), text);
}

#[test]
fn a_killed_rank_0_is_named_alone() {
    let mut ranks = start_all(3);
    call_all(&mut ranks);
    ranks[0].signal(libc::SIGKILL);
    for rank in &mut ranks[1..] {
        let text = rank.failure();
        assert!(text.starts_with("rank 0 is lost: its connection has "), "{text}");
    }
}

#[test]
fn a_stopped_rank_is_named_by_a_late_call_and_learns_it_later() {
    let mut ranks = start_all(3);
    call_all(&mut ranks);
    ranks[2].signal(libc::SIGSTOP);
    for rank in &mut ranks[..2] {
        rank.expect("call", "called");
    }
    ranks[1].expect("late", "asked");
    let text = ranks[0].failure();
    assert!(
        text.starts_with("call 2 of rank 1 is late after 1.0 s: all_reduce (sum) of 8 f32 at "),
        "{text}"
    );
    assert!(text.contains("Rank 2 has reported 1 of these calls"), "{text}");
    assert_eq!(ranks[1].failure(), text);
    ranks[2].signal(libc::SIGCONT);
    assert_eq!(ranks[2].failure(), text);
}

#[test]
fn a_stopped_rank_0_is_lost_when_a_call_is_late() {
    let mut ranks = start_all(2);
    call_all(&mut ranks);
    ranks[0].signal(libc::SIGSTOP);
    ranks[1].expect("call", "called");
    ranks[1].expect("late", "asked");
    assert_eq!(ranks[1].failure(), "rank 0 is lost: it has not answered for 5s");
    ranks[0].signal(libc::SIGCONT);
    assert_eq!(ranks[0].failure(), "rank 1 ended the group: rank 0 is lost: it has not answered for 5s");
}

#[test]
fn a_rank_that_was_stopped_for_a_while_works_on() {
    let mut ranks = start_all(3);
    call_all(&mut ranks);
    for stopped in 0..3 {
        ranks[stopped].signal(libc::SIGSTOP);
        for rank in (0..3).filter(|rank| *rank != stopped) {
            ranks[rank].expect("call", "called");
        }
        ranks[stopped].signal(libc::SIGCONT);
        ranks[stopped].expect("call", "called");
        ranks.iter_mut().for_each(|rank| rank.expect("wait", "allowed"));
    }
    ranks.iter_mut().for_each(|rank| rank.order("close"));
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.answer(), "closed"));
}

/// The program of a rank. Without its variables, in a run of all tests, it does nothing.
#[test]
fn as_a_rank() {
    let Ok(rank) = std::env::var("TEST_RANK") else { return };
    let number =
        |name: &str| std::env::var(name).expect("a rank has its variables").parse().expect("a number");
    let (rank, size): (Rank, Rank) = (rank.parse().expect("a number"), number("TEST_SIZE"));
    let address = std::env::var("TEST_ADDRESS").expect("a rank has its variables");
    let token = Token("secret".into());
    let config = Config { rank, size, address, token, check: Check::Before, arrival: LONG };
    let (sender, news) = channel();
    let on_change = move || {
        let _ = sender.send(());
    };
    let session = if rank == 0 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
        println!("> {}", listener.local_addr().expect("the listener has an address"));
        Session::host(listener, config, on_change)
    } else {
        Session::join(config, on_change)
    };
    let session = session.expect("the ranks meet");
    println!("> met");
    let mut last: Option<Number> = None;
    for line in stdin().lock().lines() {
        match line.expect("commands are text").as_str() {
            "call" => {
                last = Some(session.call(sum(8), Location::caller()).expect("the group works"));
                println!("> called");
            }
            "wait" => {
                let number = last.expect("it has made a call");
                while session.failure().is_none() && session.limit(number.sequence) < number.position {
                    news.recv_timeout(LONG).expect("there is news");
                }
                println!("> {}", session.failure().map_or("allowed".into(), |failure| failure.to_string()));
            }
            "late" => {
                let made = Made { call: sum(8), site: "train.rs:7".into() };
                let second = Duration::from_secs(1);
                session.late(last.expect("it has made a call"), made, second, second);
                println!("> asked");
            }
            "failure" => {
                while session.failure().is_none() {
                    news.recv_timeout(LONG).expect("there is news");
                }
                println!("> {}", session.failure().expect("it has failed"));
            }
            "close" => {
                println!(
                    "> {}",
                    session.close(LONG).map_or_else(|failure| failure.to_string(), |()| "closed".into())
                );
                return;
            }
            other => panic!("there is no command {other:?}"),
        }
    }
}
