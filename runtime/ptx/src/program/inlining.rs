//! The inlined calls that lead to an instruction, as far as they are in the kernel's own file.
//!
//! A `.loc` of an inlined instruction names the function and the call: a file, a line and a
//! column. That call may be inlined, too. Then an earlier `.loc` has the place of the call, and
//! names the next call. If several have it, the last of them counts, because a compiler writes the
//! `.loc` of a call where the instructions of that call begin.

use crate::exec::source::{NumberedLine, Sources};
use crate::text::{Inlined, Location};
use std::collections::HashMap;

/// The most calls that are kept of those that lead to a place.
const MOST_CALLS: usize = 16;

/// The inlined calls of a function.
#[derive(Debug, Default)]
pub(super) struct Inlining<'m> {
    /// The file of the function itself.
    own_file: Option<u32>,
    places: Vec<Frame<'m>>,
    /// The last place with each location.
    last: HashMap<Location, usize>,
    /// The last place of each inlined function with each location and call.
    inlined: HashMap<(Location, Inlined<'m>), usize>,
    /// The lists in [`Sources`], with their places.
    lists: HashMap<Vec<NumberedLine>, u32>,
}

/// A location in the code of one call.
#[derive(Clone, Copy, Debug)]
struct Frame<'m> {
    at: Location,
    inlined: Option<Inlined<'m>>,
    /// The place of the call, which is older.
    call: Option<usize>,
}

impl<'m> Inlining<'m> {
    /// Takes the next `.loc` of the function. Returns the place in `sources` of the calls that
    /// lead to it.
    pub(super) fn pass(&mut self, at: Location, inlined: Option<Inlined<'m>>, sources: &mut Sources) -> u32 {
        let place = match inlined {
            Some(inlined) => self.inlined(at, inlined),
            None => {
                self.own_file.get_or_insert(at.file);
                self.add(Frame { at, inlined, call: None })
            }
        };
        self.last.insert(at, place);
        let own = self.calls(place).filter(|call| Some(call.file) == self.own_file).take(MOST_CALLS);
        let list: Vec<_> = own.map(|call| NumberedLine { file: call.file, line: call.line }).collect();
        *self.lists.entry(list).or_insert_with_key(|list| {
            sources.calls.push(list.clone());
            sources.calls.len() as u32 - 1
        })
    }

    fn inlined(&mut self, at: Location, inlined: Inlined<'m>) -> usize {
        let last = match self.last.get(&inlined.at) {
            Some(place) => *place,
            None => self.add(Frame { at: inlined.at, inlined: None, call: None }),
        };
        // In a function that calls itself, the last place of the call may be one within this call.
        let within = self.outwards(last).find(|place| self.places[*place].inlined == Some(inlined));
        let call = within.map_or(Some(last), |place| self.places[place].call);
        match self.inlined.get(&(at, inlined)) {
            Some(known) if self.places[*known].call == call => *known,
            _ => {
                let place = self.add(Frame { at, inlined: Some(inlined), call });
                self.inlined.insert((at, inlined), place);
                place
            }
        }
    }

    fn add(&mut self, place: Frame<'m>) -> usize {
        self.places.push(place);
        self.places.len() - 1
    }

    /// Returns a place and the calls that lead to it, the innermost first, up to a limit that no
    /// compiler reaches.
    fn outwards(&self, place: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(place), |place| self.places[*place].call).take(4 * MOST_CALLS)
    }

    fn calls(&self, place: usize) -> impl Iterator<Item = Location> {
        self.outwards(place).skip(1).map(|call| self.places[call].at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(file: u32, line: u32) -> Location {
        Location { file, line, column: 5 }
    }

    /// A `.loc` of a function, with the location of its call.
    type Loc = (Location, Option<(&'static str, Location)>);

    /// Returns the lines of the calls of each `.loc`.
    fn calls(of: &[Loc]) -> Vec<Vec<u32>> {
        let (mut inlining, mut sources) = (Inlining::default(), Sources::default());
        let pass = |(at, call): &Loc| {
            let inlined = call.map(|(function, at)| Inlined { function, offset: 0, at });
            inlining.pass(*at, inlined, &mut sources)
        };
        let places: Vec<u32> = of.iter().map(pass).collect();
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
                (helper, Some(("helper", kernel))),
                (method, Some(("sync", helper))),
                (detail, Some(("wait", method))),
                (at(3, 526), Some(("arrive", detail))),
                (at(1, 13), Some(("helper", kernel))),
            ]),
            [vec![], vec![40], vec![12, 40], vec![12, 40], vec![12, 40], vec![40]]
        );
    }

    #[test]
    fn of_two_calls_of_a_function_the_last_one_counts() {
        let (method, detail) = (at(2, 441), at(3, 536));
        let of = |line| {
            let call = at(1, line);
            [(call, None), (method, Some(("sync", call))), (detail, Some(("wait", method)))]
        };
        let all: Vec<_> = [of(30), of(35), of(30)].concat();
        let each = |line: u32| [vec![], vec![line], vec![line]];
        assert_eq!(calls(&all), [each(30), each(35), each(30)].concat());
    }

    #[test]
    fn calls_of_a_function_by_itself_are_told_apart() {
        // `walk<3>`, which the kernel calls in line 9, has `walk<2>` and `walk<1>` in line 4.
        let (kernel, own) = (at(1, 9), at(1, 4));
        let levels = [
            (kernel, None),
            (at(1, 2), Some(("walk<3>", kernel))),
            (own, Some(("walk<3>", kernel))),
            (at(1, 2), Some(("walk<2>", own))),
            (own, Some(("walk<2>", own))),
            (at(1, 2), Some(("walk<1>", own))),
            (own, Some(("walk<2>", own))),
            (at(1, 2), Some(("walk<1>", own))),
            (at(1, 5), Some(("walk<1>", own))),
            (own, Some(("walk<1>", own))),
            (at(1, 5), Some(("walk<2>", own))),
            (at(1, 2), Some(("walk<2>", own))),
            (at(1, 5), Some(("walk<3>", kernel))),
        ];
        let expected = [
            vec![],
            vec![9],
            vec![9],
            vec![4, 9],
            vec![4, 9],
            vec![4, 4, 9],
            vec![4, 9],
            vec![4, 4, 9],
            vec![4, 4, 9],
            vec![4, 4, 9],
            vec![4, 9],
            vec![4, 9],
            vec![9],
        ];
        assert_eq!(calls(&levels), expected);
    }

    #[test]
    fn calls_that_lead_in_a_circle_or_very_deep_end() {
        let (a, b) = (at(1, 1), at(1, 2));
        let circle = [(at(1, 9), None), (a, Some(("f", b))), (b, Some(("g", a))), (b, Some(("h", b)))];
        assert_eq!(calls(&circle), [vec![], vec![2], vec![1, 2], vec![2, 1, 2]]);
        let deep: Vec<Loc> = (2..10_000).map(|line| (at(1, line), Some(("f", at(1, line - 1))))).collect();
        let deep: Vec<Loc> = [(at(1, 1), None)].into_iter().chain(deep).collect();
        assert_eq!(calls(&deep).last().map(Vec::len), Some(MOST_CALLS));
    }

    #[test]
    fn a_place_that_is_not_inlined_has_no_calls() {
        let (kernel, call) = (at(1, 4), at(1, 5));
        let of = [(kernel, None), (at(1, 9), Some(("f", call))), (at(1, 9), None)];
        assert_eq!(calls(&of), [vec![], vec![5], vec![]]);
    }
}
