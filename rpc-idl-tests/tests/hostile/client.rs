//! A client of `idl/hostile.x` that makes every call.

use super::service::{check, check_items};
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
        let back = client.echo(&all)?;
        check(&back);
        Ok(back == all)
    },
    |client, r| {
        let items = values::items(r);
        let back = client.list(&items, "a name")?;
        check_items(&back);
        Ok(back == items)
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
        assert!(numbers.len() <= 20_000);
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
        check(&result);
        assert!(d.len() <= 1000);
        Ok(result == all && x == [3, 2, 1] && d == [3.0])
    },
    |client, r| {
        let (mut s, mut table) = (vec![r.number() as u8; 5000], vec![3; 2000]);
        (s[0], table[0]) = (1, 4);
        let TurnReply { result, table: back } = client.turn(&s, &table)?;
        assert!(result.len() == 5000 && back.len() == 2000);
        Ok(result[4999] == 1 && result[0] == s[1] && back[1999] == 4 && back[0] == 3)
    },
    |client, r| Ok(client.pages(&values::page(r, 3))? == 4),
];

/// LARGE.
pub fn large(client: &HostileV1Client) -> Answered {
    let large = Large { first: 3, bytes: vec![9; 4_000_000], last: 4 };
    Ok(client.large(&large)? == 7)
}

/// Calls whose bulk data is read where it lies.
pub const IN_PLACE: [fn(&HostileV1Client, &mut Random) -> Answered; 2] = [
    |client, r| {
        let count = r.below(3000) as u32;
        let (mut numbers, mut ends) = (Vec::new(), None);
        let result = client.fill_in_place(
            count,
            |it| {
                assert!(it.len() <= 20_000 && it.get(it.len()).is_none());
                numbers = it.to_vec().expect("any bytes are a number");
            },
            |fixed| {
                assert_eq!(fixed.len(), 100);
                ends = Some((fixed.get(0), fixed.get(99), fixed.get(100)));
            },
        )?;
        let right = Some((Some(Ok(count as i32)), Some(Ok(count as i32)), None));
        let all = numbers == vec![f64::from(count); count as usize];
        Ok(result == count && all && ends == right)
    },
    |client, r| {
        let (len, mark) = (r.below(1000) as usize, values::mark(r));
        let (mut scaled, mut marks) = (None, None);
        client.scale_in_place(
            2.0,
            len,
            |mut m| m.fill(3.0),
            |m| scaled = Some(m.to_vec()),
            |mut fixed| fixed.fill(7),
            |fixed| assert_eq!(fixed.len(), 100),
            3,
            |mut marks| marks.fill(mark),
            // Whatever the server makes of them.
            |back| marks = Some(back.to_vec()),
        )?;
        let marked = matches!(marks, Some(Ok(marks)) if marks.iter().all(|it| it.set != mark.set));
        Ok(scaled == Some(Ok(vec![6.0; len])) && marked)
    },
];

/// As [`CALLS`], some of it, in `async` code.
pub async fn call_async(client: &HostileV1AsyncClient, r: &mut Random) -> Answered {
    let (all, items) = (values::all(r), values::items(r));
    match r.below(4) {
        0 => {
            let back = client.echo(&all).await?;
            check(&back);
            Ok(back == all)
        }
        1 => {
            let back = client.list(&items, "a name").await?;
            check_items(&back);
            Ok(back == items)
        }
        2 => {
            let (mut numbers, mut fixed) = (Vec::new(), [0; 100]);
            let result = client.fill(1000, &mut numbers, &mut fixed).await?;
            assert!(numbers.len() <= 20_000);
            Ok(result == 1000 && numbers == [1000.0; 1000] && fixed == [1000; 100])
        }
        _ => {
            let (mut m, mut fixed, mut marks) = ([3.0; 50], [7; 100], [values::mark(r); 5]);
            let result = client.scale(2.0, &mut m, &mut fixed, &mut marks).await?;
            Ok(result == 50 && m == [6.0; 50] && fixed == [8; 100])
        }
    }
}
