// Takes items from a queue by an atomic head, and counts the steps of each item's Collatz sequence.
// Fault: takes items without atomics.
extern "C" __global__ void queue(unsigned *head, const unsigned *items, unsigned *steps, unsigned n)
{
    while (true) {
        unsigned place = (*head)++; // fault
        if (place >= n)
            return;
        unsigned long long value = items[place];
        unsigned count = 0;
        while (value > 1) {
            value = value % 2 == 0 ? value / 2 : 3 * value + 1;
            count++;
        }
        steps[place] = count; // fault
    }
}
