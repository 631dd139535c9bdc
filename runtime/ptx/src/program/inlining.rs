//! The inlined calls that lead to an instruction, as far as they are in the kernel's own file.
//!
//! A `.loc` of an inlined instruction names the call: a file, a line and a column. That call may
//! be inlined, too. Then an earlier `.loc` has the place of the call, and names the next call. If
//! several have it, the last of them counts, because a compiler writes the `.loc` of a call where
//! the instructions of that call begin.

use crate::exec::source::{NumberedLine, Sources};
use crate::text::Location;
use std::collections::HashMap;

/// The inlined calls of a function.
#[derive(Debug, Default)]
pub(super) struct Inlining {
    /// The file of the function itself.
    own_file: Option<u32>,
    /// The call that inlined each place.
    call_of: HashMap<Location, Location>,
    /// The lists in [`Sources`], with their places.
    lists: HashMap<Vec<NumberedLine>, u32>,
}

impl Inlining {
    /// Takes the next `.loc` of the function. Returns the place in `sources` of the calls that
    /// lead to it.
    pub(super) fn pass(&mut self, at: Location, inlined_at: Option<Location>, sources: &mut Sources) -> u32 {
        match inlined_at {
            Some(call) => self.call_of.insert(at, call),
            None => {
                self.own_file.get_or_insert(at.file);
                self.call_of.remove(&at)
            }
        };
        let mut path = vec![at];
        while let Some(call) = self.call_of.get(&path[path.len() - 1]).filter(|call| !path.contains(call)) {
            path.push(*call);
        }
        let own = path[1..].iter().filter(|call| Some(call.file) == self.own_file);
        let list: Vec<_> = own.map(|call| NumberedLine { file: call.file, line: call.line }).collect();
        *self.lists.entry(list).or_insert_with_key(|list| {
            sources.calls.push(list.clone());
            sources.calls.len() as u32 - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(file: u32, line: u32) -> Location {
        Location { file, line, column: 5 }
    }

    /// Returns the lines of the calls of each `.loc`.
    fn calls(of: &[(Location, Option<Location>)]) -> Vec<Vec<u32>> {
        let (mut inlining, mut sources) = (Inlining::default(), Sources::default());
        let places: Vec<u32> = of.iter().map(|(at, call)| inlining.pass(*at, *call, &mut sources)).collect();
        let lines = |place: &u32| sources.calls[*place as usize].iter().map(|call| call.line).collect();
        places.iter().map(lines).collect()
    }

    #[test]
    fn the_calls_of_the_own_file_are_found_through_other_files() {
        let kernel = at(1, 40);
        let (helper, method, detail) = (at(1, 12), at(2, 441), at(3, 536));
        assert_eq!(
            calls(&[
                (kernel, None),
                (helper, Some(kernel)),
                (method, Some(helper)),
                (detail, Some(method)),
                (at(3, 526), Some(detail)),
                (at(1, 13), Some(kernel)),
            ]),
            [vec![], vec![40], vec![12, 40], vec![12, 40], vec![12, 40], vec![40]]
        );
    }

    #[test]
    fn of_two_calls_of_a_function_the_last_one_counts() {
        let (method, detail) = (at(2, 441), at(3, 536));
        let (first, second) = (at(1, 30), at(1, 35));
        let of = |call| [(call, None), (method, Some(call)), (detail, Some(method))];
        let all: Vec<_> = of(first).into_iter().chain(of(second)).collect();
        assert_eq!(calls(&all), [vec![], vec![30], vec![30], vec![], vec![35], vec![35]]);
    }

    #[test]
    fn calls_that_lead_in_a_circle_end() {
        let (a, b) = (at(2, 1), at(2, 2));
        assert_eq!(
            calls(&[(at(1, 9), None), (a, Some(b)), (b, Some(a)), (b, Some(b))]),
            [(); 4].map(|()| vec![])
        );
    }

    #[test]
    fn a_place_that_is_not_inlined_has_no_calls() {
        let (kernel, call) = (at(1, 4), at(1, 5));
        assert_eq!(
            calls(&[(kernel, None), (at(1, 9), Some(call)), (at(1, 9), None)]),
            [vec![], vec![5], vec![]]
        );
    }
}
