//! A client of `idl/hostile.x` that makes every call.

use super::values;
use rpc_idl_tests::hostile::*;
use rpc_idl_tests::random::Random;
use shrimp_rpc::CallError;

/// How a call went, and whether its answer was the right one.
type Answered = Result<bool, CallError>;

/// One call of each procedure, but for LARGE.
pub const CALLS: [fn(&HostileV1Client, &mut Random) -> Answered; 11] = [
    |client, r| {
        let all = values::all(r);
        Ok(client.echo(&all)? == all)
    },
    |client, r| {
        let items = values::items(r);
        Ok(client.list(&items, "a name")? == items)
    },
    |client, r| {
        let leaf = Tree { v: 1, children: vec![Tree { v: 2, children: Vec::new() }; 2] };
        let below = Node { left: None, right: None, v: r.number() as i32 };
        let node = Node { left: Some(Box::new(below)), right: None, v: 4 };
        Ok(client.nest(&leaf, &node)? == 5)
    },
    |client, r| {
        let (data, marks) = (values::bytes(r, 9000), vec![values::mark(r); 10]);
        let bytes: u64 = data.iter().map(|byte| u64::from(*byte)).sum();
        let set = if marks[0].set { 10 } else { 0 };
        Ok(client.sum(&data, &marks)? == bytes + set)
    },
    |client, r| {
        let count = r.below(10_000) as u32;
        let (mut numbers, mut fixed) = (Vec::new(), [0; 100]);
        let result = client.fill(count, &mut numbers, &mut fixed)?;
        let right = vec![f64::from(count); count as usize];
        Ok(result == count && numbers == right && fixed == [count as i32; 100])
    },
    |client, r| {
        let mut m = vec![3.0; r.below(2000) as usize];
        let (mut fixed, mut marks) = ([7; 100], vec![values::mark(r); 5]);
        let set = marks[0].set;
        let result = client.scale(2.0, &mut m, &mut fixed, &mut marks)?;
        let scaled = m.iter().all(|x| *x == 6.0) && fixed == [8; 100];
        Ok(result as usize == m.len() && scaled && marks.iter().all(|mark| mark.set != set))
    },
    |client, r| {
        let (data, numbers) = (values::bytes(r, 500), [3; 7]);
        let bytes: u64 = data.iter().map(|byte| u64::from(*byte)).sum();
        Ok(client.copy(&data, &[], &numbers)? == bytes + 21)
    },
    |client, r| client.note("a line", &values::bytes(r, 1000)).map(|()| true),
    |client, r| {
        let (all, mut x, mut d) = (values::all(r), [1, 2, 3], Vec::new());
        let result = client.later(&all, &mut x, &mut d)?;
        Ok(result == all && x == [3, 2, 1] && d == [3.0])
    },
    |client, r| {
        let (mut s, mut table) = (vec![r.number() as u8; 5000], vec![3; 2000]);
        (s[0], table[0]) = (1, 4);
        let TurnReply { result, table: back } = client.turn(&s, &table)?;
        Ok(result[4999] == 1 && result[0] == s[1] && back[1999] == 4 && back[0] == 3)
    },
    |client, r| Ok(client.pages(&values::page(r, 3))? == 4),
];

/// LARGE.
pub fn large(client: &HostileV1Client) -> Answered {
    let large = Large { first: 3, bytes: vec![9; 4_000_000], last: 4 };
    Ok(client.large(&large)? == 7)
}
