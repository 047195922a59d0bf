// oncrpc (npm) as a server: a portmapper of one mapping, and program 0x20001234 whose procedure 0 alone it has.
// Prints their ports; ends with its standard input. For the Node.js that the package names (0.10).
var rpc = require('oncrpc');

var log = { trace: function () { return false; }, error: function () {}, child: function () { return log; } };
var known = { prog: 0, vers: 0, prot: 0, port: 0 };

function is(one) {
    return one.prog === known.prog && one.vers === known.vers && one.prot === known.prot;
}

var portmap = rpc.createPortmapServer({ log: log });
portmap.set(function (call, reply, next) {
    known = call.mapping;
    reply.res = 1;
    reply.send();
    next();
});
portmap.get_port(function (call, reply, next) {
    reply.port = is(call.mapping) ? known.port : 0;
    reply.send();
    next();
});
portmap.dump(function (call, reply, next) {
    if (known.prog) reply.addMapping({ name: 'one', prog: known.prog, vers: known.vers, prot: known.prot, port: known.port });
    reply.send();
    next();
});
portmap.unset(function (call, reply, next) {
    reply.res = call.mapping.prog === known.prog ? 1 : 0;
    known = { prog: 0, vers: 0, prot: 0, port: 0 };
    reply.send();
    next();
});

var types = rpc.createServer({ log: log, program: 0x20001234, version: 1, name: 'types' });

portmap.listen(0, '127.0.0.1', function () {
    types.listen(0, '127.0.0.1', function () {
        console.log(portmap.address().port + ' ' + types.address().port);
    });
});
process.stdin.on('end', function () { process.exit(0); });
process.stdin.resume();
