//! A daemon for all users that carries connections, one of whom has the kernel wait for him (`c/standing.c`): the others'
//! are carried as ever.
#![allow(missing_docs)]

mod common;

#[test]
fn a_user_who_stands_in_a_send_holds_up_nobody_else() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("needs root, to be somebody else");
    }
    common::carried_for_all("standing");
}
